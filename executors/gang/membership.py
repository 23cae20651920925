"""The nodes and ranks of a generation."""

from dataclasses import dataclass
from typing import Literal

from executors.node.runner import Objection
from schemas.base import MAX_TEXT_LENGTH, Record


class Membership(Record):
    """The place of a process in a generation. Rank 0 leads it."""

    kind: Literal["membership"] = "membership"
    generation: int
    rank: int
    world: int
    """Number of ranks."""


@dataclass(frozen=True)
class Members:
    """The nodes of a generation, each with its number of ranks, in the order of the ranks."""

    counts: tuple[tuple[str, int], ...]

    @property
    def world(self) -> int:
        """Number of ranks."""
        return sum(count for _, count in self.counts)

    @property
    def is_one_node(self) -> bool:
        """Whether all ranks are on one node."""
        return len(self.counts) == 1

    def ranks_of(self, node: str) -> range:
        """The ranks of a node; empty if it has none."""
        first = 0
        for member, count in self.counts:
            if member == node:
                return range(first, first + count)
            first += count
        return range(0)

    def objection(self, node: str, gpus: int) -> Objection | None:
        """Return why a node with `gpus` GPUs cannot be a member; None if it can."""
        nodes = [member for member, _ in self.counts]
        if len(set(nodes)) < len(nodes):
            return Objection("impossible", "a node is among the members twice")
        if node not in nodes:
            detail = f"{node} is not among the members {', '.join(nodes)}"
            return Objection("impossible", detail[:MAX_TEXT_LENGTH])
        if (needed := len(self.ranks_of(node))) > gpus:
            return Objection("impossible", f"ranks here need {needed} GPUs, the node has {gpus}")
        return None
