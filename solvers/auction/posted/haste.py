"""What the last room of a slot is worth to those who offer much and cannot wait.

A task that can wait may use any slot of a long window; one that cannot finds room in the next few or nowhere.
Where those who offer much are of the second kind, a plan for the first should leave them some room in the
near slots: a smooth form of the protection levels of K. Littlewood, "Forecasting and Control of Passenger
Bookings" (1972), for room that is sold first to those who can wait. Where they have as much time as all
others, near slots are best filled, as what is not sold of them is soon lost.
"""

from solvers.compiled import Floats, kernel

_MUCH = 2.0
"""Who offers more than so many times the typical density offers much."""
_SHORT_WINDOW = 1 / 2
"""Of the mean window: who has less time is in haste, and the more so the less it is."""
_MOST_PREMIUM = 4.0
"""An offer exceeds that by at most so many times the typical one, however absurd it is."""
MOST_COUNTED = _MUCH + _MOST_PREMIUM
"""An offer of so many times the typical density counts as much as any higher one."""
_RARE_PART = 1 / 8
"""Where those in haste are less than this part of all, their premium is less in proportion: a few
tasks must not make a zone keep its room from all others."""


@kernel
def haste_premium(densities: Floats, units: Floats, windows: Floats, typical: float) -> float:
    """What a unit of the last room of a slot brings beyond much, in micros, as it is kept for those in haste.

    Each unit that was asked for counts by its excess over what is much. So weighted are the means of the
    excess and of the time that there was.

    Args:
        densities: (classes,) what was offered, in micros per unit.
        units: (classes,) what was sold, and of what lost as much as counts.
        windows: (classes,) sum over the units of the slots in which each might have run.
        typical: density that most room is worth.
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
