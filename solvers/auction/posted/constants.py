"""Constants of prices learned from bids: the intent of each, its unit, and the test that holds it.

docs/auction/prices.md describes the rules that use them. A *part* is a fraction of the named quantity. *Held
by* are tests that fail if the value is about doubled or halved: those of the rules, and the recorded outcomes
(tests/streams/outcomes/auction-default.txt).
"""

HOUR_S = 3_600.0

# The demand curve: length of its memory.

MOST_SUSTAINED = 4.0
"""Demand above which it is a burst, as a multiple of the room of the past slots. No zone has such demand all
day; a burst is, for instance, the work of a day that arrives in an hour. Held by `test_bursts.py`."""
MOST_UNSOLD = 4.0
"""Most counted units of losers, as a multiple of those of winners. Held by `test_held_constants.py`."""
MOST_AWAY = 1 / 32
"""Most counted units of losers with higher offers, likewise: enough to detect demand for near slots by bids
that never win. Held by `test_held_constants.py`."""
FORGOTTEN_AFTER = 4
"""Number of memory spans after which nothing is remembered, if their slots pass at once. Held by
`test_demand_curve.py`."""
SURPRISE = 2.0
"""Least factor between demand and remembered demand, besides a standard deviation, that is a strong
difference: with few bids, twice as many may be chance. Held by `test_demand_curve.py` and the recorded
outcomes."""
BUSY_PART = 1 / 2
"""Expected demand, as a part of the mean, below which even less demand is no evidence of a change. Held by
`test_held_constants.py`."""
RECENT_PART = 0.1
"""Part of the span over which demand is averaged to detect a change. Held by the recorded outcomes."""
FADING_DIVISOR = 2.0
"""Divisor of that averaging time after a strong difference: memory then fades within the quotient. Held by
`test_held_constants.py`."""
FASTEST_FADING = 0.5
"""Largest part of the memory that fades in a slot. Held by the recorded outcomes."""
FAINT_PART = 1e-9
"""Part of all units below which a class is dropped, which bounds the state. Held by
`test_held_constants.py`."""

# The hours of the day.

MEMORY_DAYS = 3
"""Number of days over which hours are averaged and comparisons fade. Held by `test_held_constants.py`."""
LONGEST_PAUSE_DAYS = 2
"""Longest pause after which the present day continues; after a longer one, it counts as incomplete. Held by
`test_held_constants.py`."""
DOUBT_S = 3 * HOUR_S
"""Time over which comparisons of slots with the pattern fade, in seconds. Held by `test_day_pattern.py`."""
QUIETEST_PART = 1 / 64
"""Least expected demand of an hour, as a part of the mean: never 0. Held by `test_day_pattern.py`."""

# The levels: base and guard.

SPAN_WINDOWS = 2.2
"""Span ahead as a multiple of the mean window of sales: bids are planned over it. Held by
`test_levels.py`."""
BUSIEST_DIVISOR = 5
"""Divisor of the span for the shortest busy stretch: a fifth of the span, nearly half of a mean window. Tasks
of a shorter one may run later. Held by `test_held_constants.py`."""
UNOBSERVED_PART = 0.2
"""Part of the span added to the observed one at the start, so that early demand counts less. Held by the
recorded outcomes."""
CONTINUATION_CHANCE = 1 / 3
"""Chance that a burst continues. If it ends, there is no demand for the room that prices kept. Held by
`test_levels.py`."""
MARGIN_DEVIATIONS = 3.0
"""Safety stock for fluctuating demand if offers differ strongly, in standard deviations of the sales that
would fill the span. It is a large part of a zone that holds few tasks at once, and a small part of a zone
that holds hundreds. With equal offers nothing is kept, since later sales bring no more. Held by
`test_levels.py` and the recorded outcomes."""
GUARD_ROOM_PART = 0.2
"""Part of the free room into which demand fits at the guard: the last room of a slot is kept for it. Held by
`test_levels.py` and the recorded outcomes."""
LOW_OFFER_PART = 15 / 16
"""Part of the sold units that offered a low density or more. It is not the lowest density, which may be that
of an almost worthless bid. Held by the recorded outcomes."""
MOST_GUARD = 16.0
"""Largest guard, as a multiple of the base. Otherwise a few cheap bids of enormous amounts would determine
the price of a full slot, and no usual bid could win and reveal the value of room. Held by
`test_held_constants.py`."""
FIRST_GUARD = 1_024.0
"""Largest guard, as a multiple of the least level: without a base, 64 times the operational cost. Held by
`test_held_constants.py`."""
FIRST_STEP = 1 / 16
"""Least level above 0, as a part of the operational cost per unit. Held by `test_levels.py` and the recorded
outcomes."""
FIRST_OFFER = 1 / 64
"""Least level above 0, as a part of a low winning offer, if operation costs nothing. Held by
`test_levels.py`."""
RISE_PER_SHARE = 139.0
"""Rate of rise: a level at most doubles while half a per cent of the span's room is sold (ln 2 / 0.005). Held
by `test_levels.py` and the recorded outcomes."""
FALL_SLOTS = 5.0
"""Rate of fall, in slots: prices fall by e in about a fifth of the span. Held by `test_levels.py` and the
recorded outcomes."""
FASTEST_FALL = 0.5
"""Largest part by which prices fall in a slot. Held by `test_levels.py`."""

# The posted prices and the plans.

GUARD_PART = 0.7
"""Price of a full node-slot, as a part of the way from base to guard. Held by the recorded outcomes."""
FLOOR_PART = 1 / 8
"""Least price of room, as a part of the operational cost of full use of the reservation; room and operation
together cost at least the whole. So a user who reserves room and uses little of it, or withdraws, pays for it
in an empty zone too. Held by the recorded outcomes."""
TYPICAL_OFFER_PART = 0.5
"""Part of the sold units that offered the typical density or more. Held by the recorded outcomes."""

# Haste: high offers that cannot wait.

HIGH_OFFER = 2.0
"""Least high offer, as a multiple of the typical density. Held by `test_haste.py`."""
MOST_PREMIUM = 4.0
"""Largest counted excess of an offer over that, as a multiple of the typical one, for absurd offers. Held
by `test_haste.py`."""
MOST_COUNTED = HIGH_OFFER + MOST_PREMIUM
"""Largest counted offer, as a multiple of the typical density. Held by `test_held_constants.py`."""
SHORT_WINDOW_PART = 1 / 2
"""Short window, as a part of the mean window. Tasks with less time are in haste: the less time, the more.
Held by `test_haste.py` and the recorded outcomes."""
RARE_PART = 1 / 8
"""Part of tasks in haste below which their premium is reduced in proportion: a few tasks must not make a zone
withhold its room from all others. Held by `test_haste.py`."""
