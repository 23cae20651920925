"""Value of the last room of a slot to high offers that cannot wait.

A task that can wait may use any slot of a long window; one that cannot must find room in the next few. If
high offers are of the second kind, a plan for the first should leave some room in near slots. This is a
smooth form of the protection levels of K. Littlewood, "Forecasting and Control of Passenger Bookings" (1972),
for room that is sold first to tasks that can wait. If high offers have as much time as all others, near slots
are best filled, since their unsold room is soon lost.
"""

from solvers.compiled import Floats, kernel

_MUCH = 2.0
"""Least high offer, as a multiple of the typical density."""
_SHORT_WINDOW = 1 / 2
"""Short window, as a part of the mean window: tasks with less time are in haste, more with less time."""
_MOST_PREMIUM = 4.0
"""Largest counted excess of an offer over that, as a multiple of the typical one, for absurd offers."""
MOST_COUNTED = _MUCH + _MOST_PREMIUM
"""Largest counted offer, as a multiple of the typical density."""
_RARE_PART = 1 / 8
"""Part of tasks in haste below which their premium is reduced in proportion: a few tasks must not make a zone
withhold its room from all others."""


@kernel
def haste_premium(densities: Floats, units: Floats, windows: Floats, typical: float) -> float:
    """Return the value of a unit of the last room of a slot beyond a high offer, in micros, for tasks in
    haste.

    Each demanded unit is weighted by its excess over the least high offer, in the means of the excess and of
    the window.

    Args:
        densities: (classes,) offers, in micros per unit.
        units: (classes,) sold units, and counted units of losers.
        windows: (classes,) sum over the units of the slots in which each might have run.
        typical: density of most room.
    """
    offered = offered_squared = offered_windows = all_units = all_windows = 0.0
    for place in range(densities.size):
        excess = min(max(densities[place] - _MUCH * typical, 0.0), _MOST_PREMIUM * typical)
        offered += units[place] * excess
        offered_squared += units[place] * excess * excess
        offered_windows += windows[place] * excess
        all_units += units[place]
        all_windows += windows[place]
    if offered <= 0 or all_windows <= 0:
        return 0.0
    window_part = offered_windows / offered * all_units / all_windows
    haste = max(1.0 - window_part / _SHORT_WINDOW, 0.0)
    return haste * min(offered_squared / offered, offered / all_units / _RARE_PART)
