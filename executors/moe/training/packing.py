"""Times and sizes of the repacking of a training job's experts (thesis, section 4.4.2)."""

import math

from executors.moe.parallel.packing import MicroOpTimes, Packing, next_packing

FIRST_MEASUREMENT = 10
"""Step after which the first measurement begins."""
STEPS_BETWEEN = 4
"""Steps per measurement."""


def begin_packing(world: int, experts: int, per_device: int | None) -> Packing:
    """Return the first packing: with the fewest experts on each device, or with the job's own number.

    Raises:
        ValueError: experts cannot be distributed by the job's number.
    """
    return Packing(world, experts, per_device or experts // math.gcd(world, experts))


class PackingController:
    """Doubles the experts on each device until their micro-op takes longer than that of the all-to-all. Pure:
    it gets measurements, and decides the same on all ranks for the same times.

    Attributes:
        is_settled: whether the packing is final.
    """

    def __init__(self, packing: Packing, *, is_fixed: bool) -> None:
        """
        Args:
            is_fixed: whether the job gives the number of experts on a device.
        """
        self.is_settled = is_fixed or packing.group_size == 1

    def discards_after(self, step: int) -> bool:
        """Return whether measurements up to a step do not count: the first steps take longer."""
        return not self.is_settled and step == FIRST_MEASUREMENT - STEPS_BETWEEN

    def measures_after(self, step: int) -> bool:
        """Return whether ranks exchange their times after a step."""
        since = step - FIRST_MEASUREMENT
        return not self.is_settled and since >= 0 and since % STEPS_BETWEEN == 0

    def decide(self, packing: Packing, times: MicroOpTimes) -> Packing:
        """Return the packing from the next step on."""
        following = next_packing(packing, times)
        self.is_settled = following == packing or following.group_size == 1
        return following
