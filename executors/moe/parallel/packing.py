"""Number of experts per device, the groups of ranks that exchange tokens, and when experts are repacked."""

import math
from dataclasses import dataclass

FIRST_MEASUREMENT = 10
"""Step after which the first measurement begins."""

STEPS_BETWEEN = 4
"""Steps per measurement."""


@dataclass(frozen=True)
class Packing:
    """Assignment of a layer's experts to ranks.

    Ranks are cut into groups of neighbours; each group hosts all experts, and exchanges tokens within itself.
    So with more experts on a device there are fewer ranks in a group, and each expert is on more devices,
    over which its gradients are averaged. With all experts on each device there is no all-to-all.

    Attributes:
        world: number of all ranks.
        experts: number of the layer's experts.
        per_device: experts on each device.
    """

    world: int
    experts: int
    per_device: int

    def __post_init__(self) -> None:
        """Check that it is possible.

        Raises:
            ValueError: experts cannot be distributed so.
        """
        if self.per_device < 1 or self.experts % self.per_device:
            raise ValueError(f"{self.experts} experts cannot be dealt out by {self.per_device} to a device")
        if self.world % self.group_size:
            raise ValueError(
                f"{self.experts} experts, {self.per_device} on a device, are on {self.group_size} ranks, and "
                f"{self.world} ranks cannot be cut into groups of that size"
            )

    @property
    def group_size(self) -> int:
        """Number of ranks that exchange tokens."""
        return self.experts // self.per_device

    def hosted(self, rank: int) -> range:
        """Return the experts on a rank."""
        first = rank % self.group_size * self.per_device
        return range(first, first + self.per_device)

    def group(self, rank: int) -> range:
        """Return the ranks with which a rank exchanges tokens, including itself."""
        first = rank - rank % self.group_size
        return range(first, first + self.group_size)

    def replicas(self, rank: int) -> range:
        """Return the ranks that host the same experts as a rank, including itself."""
        return range(rank % self.group_size, self.world, self.group_size)

    def holder(self, expert: int, rank: int) -> int:
        """Return the rank of the same group that hosts an expert."""
        return self.group(rank)[expert // self.per_device]

    def doubled(self) -> "Packing | None":
        """Return the packing with twice as many experts on each device; None if it is impossible."""
        if self.group_size % 2:
            return None
        return Packing(self.world, self.experts, 2 * self.per_device)


@dataclass(frozen=True)
class MicroOpTimes:
    """Durations of a layer's micro-ops, averaged over ranks, so that all decide the same."""

    all_to_all_s: float
    feed_forward_s: float


def next_packing(packing: Packing, times: MicroOpTimes) -> Packing:
    """Return the packing to try after a measured one: doubled while the device would wait for tokens.

    Source: section 4.4.2, expert packing.
    """
    if times.feed_forward_s >= times.all_to_all_s:
        return packing
    return packing.doubled() or packing


@dataclass(frozen=True)
class ExpertBytes:
    """Device memory of one expert of a layer during training.

    Attributes:
        kept: bytes of a resident expert, from step to step.
        computing: further bytes of a resident expert while its layer computes.
        visiting: bytes of an expert from the host's memory while it computes.
    """

    kept: int
    computing: int
    visiting: int


def resident_experts(per_device: int, layers: int, expert: ExpertBytes, budget_bytes: int) -> int:
    """Return the number of experts per device and layer that stay in the device's memory; the others are in
    the host's, and are copied in turn.

    Experts of all layers stay, while one layer computes at a time. There must be room for one more expert,
    unless all stay.

    Source: section 4.4.2, DRAM-offloading on devices with little memory. The thesis does not specify the
    number that stays; here it is the largest possible.

    Raises:
        ValueError: there is no room for one expert from the host's memory.
    """
    of_each = layers * expert.kept + expert.computing
    if per_device * of_each <= budget_bytes:
        return per_device
    if expert.visiting > budget_bytes:
        raise ValueError(
            f"an expert needs {_gib(expert.visiting)} of a device's memory while it computes, and experts "
            f"may take {_gib(budget_bytes)}: raise MILLRACE_EXPERT_MEMORY_GIB, or give the job devices with "
            "more memory"
        )
    return min((budget_bytes - expert.visiting) // of_each, per_device - 1)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.3g} GiB"


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
