"""How many experts a device hosts, and so among which ranks tokens are exchanged."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Packing:
    """Which rank hosts which experts of a layer.

    Ranks are cut into groups of neighbours; each group hosts all experts, and exchanges tokens among itself.
    So with more experts on a device there are fewer ranks in a group, and each expert is on more devices,
    over which its gradients are averaged. With all experts on each device there is no all-to-all.

    Attributes:
        world: ranks in all.
        experts: of the layer.
        per_device: experts on each device.
    """

    world: int
    experts: int
    per_device: int

    def __post_init__(self) -> None:
        """Check that it can be.

        Raises:
            ValueError: experts cannot be dealt out so.
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
        """Ranks that exchange tokens."""
        return self.experts // self.per_device

    def hosted(self, rank: int) -> range:
        """Experts on a rank."""
        first = rank % self.group_size * self.per_device
        return range(first, first + self.per_device)

    def group(self, rank: int) -> range:
        """Ranks with which a rank exchanges tokens, itself among them."""
        first = rank - rank % self.group_size
        return range(first, first + self.group_size)

    def replicas(self, rank: int) -> range:
        """Ranks that host the same experts as a rank, itself among them."""
        return range(rank % self.group_size, self.world, self.group_size)

    def holder(self, expert: int, rank: int) -> int:
        """The rank of the same group that hosts an expert."""
        return self.group(rank)[expert // self.per_device]

    def doubled(self) -> "Packing | None":
        """With twice as many experts on each device; None if these cannot be dealt out so."""
        if self.group_size % 2:
            return None
        return Packing(self.world, self.experts, 2 * self.per_device)


def first_packing(world: int, experts: int) -> Packing:
    """As few experts on each device as there can be, one if there are as many ranks.

    Raises:
        ValueError: neither number is a multiple of the other.
    """
    return Packing(world, experts, max(1, experts // world))


@dataclass(frozen=True)
class MicroOpTimes:
    """How long micro-ops of a layer take, averaged over ranks, so that all decide the same."""

    all_to_all_s: float
    feed_forward_s: float


def next_packing(packing: Packing, times: MicroOpTimes) -> Packing:
    """The packing to try after one was measured: doubled while the device would wait for tokens.

    Source: section 4.4.2, expert packing.
    """
    if times.feed_forward_s >= times.all_to_all_s:
        return packing
    return packing.doubled() or packing


def settled_packing(first: Packing, measure: Callable[[Packing], MicroOpTimes]) -> Packing:
    """The packing at which doubling ends: the least whose feed-forward micro-op outlasts its all-to-all's,
    or the largest there is."""
    packing = first
    while (following := next_packing(packing, measure(packing))) != packing:
        packing = following
    return packing


@dataclass(frozen=True)
class ExpertBytes:
    """What one expert of a layer takes of a device's memory while it is trained.

    Attributes:
        kept: of an expert that stays on the device, from step to step.
        computing: besides, of one that stays, while its layer computes.
        visiting: of one that comes from the host's memory, while it computes.
    """

    kept: int
    computing: int
    visiting: int


def resident_experts(per_device: int, layers: int, expert: ExpertBytes, budget_bytes: int) -> int:
    """How many of the experts that a device hosts of each layer stay in its memory; the others are in the
    host's, and come by turns.

    Experts of all layers stay, while one layer computes at a time. One more than stay has to have room,
    unless all stay.

    Source: section 4.4.2, DRAM-offloading where the device's memory is short. The thesis says nothing of how
    many stay; here, as many as can.

    Raises:
        ValueError: there is no room for one expert that comes.
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
