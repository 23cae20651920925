"""A process's place among those that train together."""

from dataclasses import dataclass
from typing import Literal

from executors.node.runner import Objection
from schemas.base import Record


class Membership(Record):
    """A worker process has this place in a generation. Rank 0 leads it."""

    kind: Literal["membership"] = "membership"
    generation: int
    rank: int
    world: int
    """Processes in all, one for each GPU of each worker."""


@dataclass(frozen=True)
class Members:
    """The nodes of a generation, and how many processes each has, in the order of their ranks."""

    counts: tuple[tuple[str, int], ...]

    @property
    def world(self) -> int:
        """All processes."""
        return sum(count for _, count in self.counts)

    @property
    def is_one_node(self) -> bool:
        """Whether they are all on the same."""
        return len(self.counts) == 1

    def ranks_of(self, node: str) -> range:
        """The ranks of a node's processes; empty if it has none."""
        first = 0
        for member, count in self.counts:
            if member == node:
                return range(first, first + count)
            first += count
        return range(0)

    def objection(self, node: str, gpus: int, called: str) -> Objection | None:
        """Why a node with so many GPUs cannot be one of them; None if it can.

        Args:
            called: what a process is called.
        """
        nodes = [member for member, _ in self.counts]
        if len(set(nodes)) < len(nodes):
            return Objection("impossible", "a node is among the members twice")
        if node not in nodes:
            return Objection("impossible", f"{node} is not among the members {', '.join(nodes)}"[:2_000])
        if (needed := len(self.ranks_of(node))) > gpus:
            return Objection("impossible", f"{called}s here need {needed} GPUs, the node has {gpus}")
        return None
