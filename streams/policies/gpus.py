"""The GPUs of a zone: their nodes, their holders, and the nodes where nothing new may be placed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from schemas.cells import Zone
from solvers.common.gpu_placement import IdleGpus


class Gpus:
    """The GPUs of one zone. Holders are named by the policy: jobs, or tasks of several jobs."""

    def __init__(self) -> None:
        self._nodes: dict[str, int] = {}
        """GPUs of each node, in the order of the configuration."""
        self._held: dict[str, dict[str, int]] = {}
        """Held GPUs by node and holder; only nodes with some."""
        self._closed: dict[str, None] = {}
        """Nodes on which nothing new is placed."""
        self._idle = IdleGpus((), {})
        """Idle GPUs of open nodes."""

    def configure(self, zone: Zone) -> None:
        """Set the nodes of the zone. No GPUs of a removed node may be held."""
        self._nodes = zone.gpus_by_node
        self._closed = {node: None for node in self._closed if node in self._nodes}
        self._count_idle()

    @property
    def nodes(self) -> Mapping[str, int]:
        """GPUs by node."""
        return self._nodes

    @property
    def most_per_node(self) -> int:
        """GPUs of the largest node."""
        return max(self._nodes.values())

    @property
    def total(self) -> int:
        """GPUs of all nodes, closed ones included."""
        return sum(self._nodes.values())

    @property
    def open(self) -> int:
        """GPUs of open nodes, held or not."""
        return sum(gpus for node, gpus in self._nodes.items() if node not in self._closed)

    @property
    def used(self) -> int:
        """Held GPUs."""
        return sum(map(self.held_on, self._held))

    def held_on(self, node: str) -> int:
        """Return the held GPUs of a node."""
        return sum(self._held.get(node, {}).values())

    def free(self) -> dict[str, int]:
        """Return the idle GPUs by node, of open nodes."""
        idle = {node: self._idle.of(node) for node in self._nodes}
        return {node: gpus for node, gpus in idle.items() if gpus is not None}

    def idle(self) -> int:
        """Return the number of idle GPUs of open nodes."""
        return self._idle.total

    def held_in_open(self, holder_members: Mapping[str, int]) -> int:
        """Return how many of a holder's GPUs, given by node, are of open nodes."""
        return sum(gpus for node, gpus in holder_members.items() if node not in self._closed)

    def place(self, holder: str, gpus: int, preferred: Mapping[str, int]) -> dict[str, int] | None:
        """Hold GPUs on as few nodes as possible and return them by node; None if too few are idle."""
        members = self._idle.allocate(gpus, preferred)
        for node, count in (members or {}).items():
            self._held.setdefault(node, {})[holder] = count
        return members

    def hold(self, holder: str, members: Mapping[str, int]) -> None:
        """Hold GPUs again, after a restart."""
        for node, count in members.items():
            self._held.setdefault(node, {})[holder] = count
            self._count(node)

    def give_back(self, holder: str, nodes: Iterable[str]) -> None:
        """Release the GPUs that a holder has on some nodes."""
        for node in nodes:
            holders = self._held.get(node, {})
            holders.pop(holder, None)
            if not holders:
                self._held.pop(node, None)
            self._count(node)

    def holders(self, node: str) -> Sequence[str]:
        """Return the holders of a node's GPUs."""
        return list(self._held.get(node, ()))

    def set_open(self, node: str, is_open: bool) -> None:
        """Open or close a node for new tasks."""
        if is_open:
            self._closed.pop(node, None)
            self._count(node)
        else:
            self._closed[node] = None
            self._idle.drop(node)

    def is_open(self, node: str) -> bool:
        """Return whether new tasks may be placed on a node."""
        return node in self._nodes and node not in self._closed

    def describe(self) -> dict[str, Any]:
        """Describe the GPUs of each node, in values that JSON has."""
        return {
            node: described_gpus(gpus, self._held.get(node, {}), self.is_open(node))
            for node, gpus in self._nodes.items()
        }

    def state(self) -> list[str]:
        """Return the closed nodes."""
        return list(self._closed)

    def restore(self, closed: Sequence[str]) -> None:
        """Set the closed nodes; `hold` adds the holders."""
        self._closed = dict.fromkeys(closed)
        self._count_idle()

    def _count_idle(self) -> None:
        """Count the idle GPUs of all open nodes."""
        self._idle = IdleGpus(
            self._nodes, {node: self._idle_on(node) for node in self._nodes if node not in self._closed}
        )

    def _count(self, node: str) -> None:
        """Count the idle GPUs of one node."""
        if self.is_open(node):
            self._idle.count(node, self._idle_on(node))

    def _idle_on(self, node: str) -> int:
        return self._nodes[node] - self.held_on(node)


def described_gpus(gpus: int, held: Mapping[str, int], is_open: bool) -> dict[str, Any]:
    """Describe the GPUs of a node, in values that JSON has.

    Args:
        held: GPUs by holder.
        is_open: whether anything new may be placed there.
    """
    return {"gpus": gpus, "free": gpus - sum(held.values()), "held": dict(held), "open": is_open}
