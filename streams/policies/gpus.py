"""The GPUs of a zone: which node has how many, who holds them, and where nothing new may be placed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from schemas.cells import Zone
from solvers.common.gpu_placement import IdleGpus


class Gpus:
    """The GPUs of one zone. Holders are what the policy names: jobs, or tasks of several."""

    def __init__(self) -> None:
        self._nodes: dict[str, int] = {}
        """GPUs of each node, in the order of the configuration."""
        self._held: dict[str, dict[str, int]] = {}
        """By node and holder; only nodes with some."""
        self._closed: dict[str, dict[str, None]] = {}
        """Why nothing new is placed on a node; only nodes for which there is a reason."""
        self._idle = IdleGpus((), {})
        """Of open nodes."""

    def configure(self, zone: Zone) -> None:
        """These nodes are there from now on; nobody holds GPUs of one that is gone."""
        per_node = {gpu.name: gpu.gpus for gpu in zone.gpu_types}
        self._nodes = {node.id: per_node[node.gpu_type] for node in zone.nodes}
        self._closed = {node: reasons for node, reasons in self._closed.items() if node in self._nodes}
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
        """Of all nodes, closed ones too."""
        return sum(self._nodes.values())

    @property
    def open(self) -> int:
        """Of nodes that new tasks may be placed on, held or not."""
        return sum(gpus for node, gpus in self._nodes.items() if node not in self._closed)

    @property
    def used(self) -> int:
        """That are held."""
        return sum(sum(holders.values()) for holders in self._held.values())

    def free(self) -> dict[str, int]:
        """Idle GPUs by node, of nodes that are open."""
        idle = {node: self._idle.of(node) for node in self._nodes}
        return {node: gpus for node, gpus in idle.items() if gpus is not None}

    def idle(self) -> int:
        """Idle GPUs of open nodes."""
        return self._idle.total

    def held_in_open(self, holder_members: Mapping[str, int]) -> int:
        """How many of some GPUs are of open nodes."""
        return sum(gpus for node, gpus in holder_members.items() if node not in self._closed)

    def take(self, holder: str, gpus: int, preferred: Mapping[str, int]) -> dict[str, int] | None:
        """Hold so many GPUs on as few nodes as possible, and say on which; None where too few idle."""
        members = self._idle.take(gpus, preferred)
        for node, count in (members or {}).items():
            self._held.setdefault(node, {})[holder] = count
        return members

    def hold(self, holder: str, members: Mapping[str, int]) -> None:
        """Hold these GPUs again, after a restart."""
        for node, count in members.items():
            self._held.setdefault(node, {})[holder] = count
            self._count(node)

    def give_back(self, holder: str, nodes: Iterable[str]) -> None:
        """What is held on these nodes idles."""
        for node in nodes:
            holders = self._held.get(node, {})
            holders.pop(holder, None)
            if not holders:
                self._held.pop(node, None)
            self._count(node)

    def holders(self, node: str) -> Sequence[str]:
        """Who holds GPUs of a node."""
        return list(self._held.get(node, ()))

    def close(self, node: str, reason: str) -> None:
        """Place nothing new on a node."""
        self._closed.setdefault(node, {})[reason] = None
        self._idle.drop(node)

    def reopen(self, node: str, reasons: Iterable[str]) -> None:
        """These reasons are gone."""
        kept = self._closed.get(node, {})
        for reason in reasons:
            kept.pop(reason, None)
        if not kept:
            self._closed.pop(node, None)
            self._count(node)

    def is_open(self, node: str) -> bool:
        """Whether new tasks may be placed there."""
        return node in self._nodes and node not in self._closed

    def describe(self) -> dict[str, Any]:
        """Describe the GPUs of each node, in values that JSON has."""
        return {
            node: described_gpus(gpus, self._held.get(node, {}), self._closed.get(node, ()))
            for node, gpus in self._nodes.items()
        }

    def state(self) -> dict[str, Any]:
        """What neither the configuration says nor the tasks do."""
        return {node: list(reasons) for node, reasons in self._closed.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take a state; who holds what is told by `hold`."""
        self._closed = {node: dict.fromkeys(reasons) for node, reasons in state.items()}
        self._count_idle()

    def _count_idle(self) -> None:
        """Count all open nodes anew."""
        self._idle = IdleGpus(
            self._nodes, {node: self._idle_on(node) for node in self._nodes if node not in self._closed}
        )

    def _count(self, node: str) -> None:
        """Count one node anew."""
        if self.is_open(node):
            self._idle.count(node, self._idle_on(node))

    def _idle_on(self, node: str) -> int:
        return self._nodes[node] - sum(self._held.get(node, {}).values())


def described_gpus(gpus: int, held: Mapping[str, int], closed: Iterable[str]) -> dict[str, Any]:
    """Describe the GPUs of a node, in values that JSON has.

    Args:
        held: GPUs by holder.
        closed: reasons that nothing new is placed there.
    """
    return {"gpus": gpus, "free": gpus - sum(held.values()), "held": dict(held), "closed": list(closed)}
