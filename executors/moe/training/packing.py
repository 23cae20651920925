"""When and how a job that trains packs its experts anew (thesis, section 4.4.2)."""

import math

from executors.moe.parallel.packing import MicroOpTimes, Packing, next_packing

FIRST_MEASUREMENT = 10
"""The step after which is measured first."""
STEPS_BETWEEN = 4
"""So many steps are measured each time."""


def begin_packing(world: int, experts: int, per_device: int | None) -> Packing:
    """How a job begins: with as few experts on each device as can be, or with as many as it says.

    Raises:
        ValueError: experts cannot be dealt out as it says.
    """
    return Packing(world, experts, per_device or experts // math.gcd(world, experts))


class PackingController:
    """Doubles the experts on each device until their micro-op outlasts that of the all-to-all. Pure: it is
    told what was measured, and decides on all ranks alike where the times are the same.

    Attributes:
        is_settled: whether nothing will change any more.
    """

    def __init__(self, packing: Packing, *, is_fixed: bool) -> None:
        """
        Args:
            is_fixed: whether the job says itself how many experts are on a device.
        """
        self.is_settled = is_fixed or packing.group_size == 1

    def discards_after(self, step: int) -> bool:
        """Whether what was measured up to so many steps does not count: the first ones take longer."""
        return not self.is_settled and step == FIRST_MEASUREMENT - STEPS_BETWEEN

    def measures_after(self, step: int) -> bool:
        """Whether ranks tell each other their times after so many steps."""
        since = step - FIRST_MEASUREMENT
        return not self.is_settled and since >= 0 and since % STEPS_BETWEEN == 0

    def decide(self, packing: Packing, times: MicroOpTimes) -> Packing:
        """The packing from the next step on."""
        following = next_packing(packing, times)
        self.is_settled = following == packing or following.group_size == 1
        return following
