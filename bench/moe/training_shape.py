"""What a measured training step consists of, and the ways in which its collectives may be issued."""

from dataclasses import dataclass

UNCUT_BYTES = 2**40
"""A partition size that cuts nothing."""


@dataclass(frozen=True)
class Shape:
    """A model whose layers are a dense network each, of which all ranks have the parameters, and experts.

    Attributes:
        experts: of a layer; each token goes to two of them, chosen once by the seed, about evenly.
        layers: in all.
        hidden: features of a token, 4 bytes each.
        dense: inner features of the dense network.
        inner: inner features of an expert.
        tokens: of each rank and step.
        bucket_bytes: of gradients that DistributedDataParallel averages together.
    """

    experts: int
    layers: int
    hidden: int
    dense: int
    inner: int
    tokens: int
    bucket_bytes: int

    @property
    def row_bytes(self) -> int:
        """What one token sends to one expert."""
        return 4 * self.hidden

    @property
    def exchanged_bytes(self) -> int:
        """What a rank has for the experts in one all-to-all, with what stays on the rank."""
        return 2 * self.tokens * self.row_bytes

    @property
    def dense_bytes(self) -> int:
        """Gradients of a layer that all ranks average."""
        return 4 * 2 * self.hidden * self.dense

    @property
    def expert_bytes(self) -> int:
        """Gradients of one expert."""
        return 4 * 2 * self.hidden * self.inner


@dataclass(frozen=True)
class Variant:
    """A way to issue a step's collectives.

    Attributes:
        name: of a row.
        is_scheduled: all-to-all first, by `CommunicationScheduler`; otherwise both kinds beside each other.
        has_two_lanes: whether all-to-alls use a connection for each direction (`Lanes`).
        partition_bytes: of allreduce micro-ops, at most.
        chunks: micro-ops of an all-to-all.
        per_device: experts of a layer on each device.
    """

    name: str
    is_scheduled: bool = True
    has_two_lanes: bool = True
    partition_bytes: int = UNCUT_BYTES
    chunks: int = 1
    per_device: int = 1

    @property
    def is_cut(self) -> bool:
        """Whether gradients are averaged in micro-ops."""
        return self.partition_bytes < UNCUT_BYTES


BASELINE = Variant("baseline", is_scheduled=False, has_two_lanes=False)
"""As other systems do: section 4.2.2."""
