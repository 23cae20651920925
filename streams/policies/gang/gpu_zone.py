"""The base of zones that give GPUs of their nodes to gangs."""

from collections.abc import Callable
from typing import Any, NamedTuple

from streams.cell.nodes import NodeChange
from streams.policies.gang.gangs import G, Gangs, R
from streams.policies.gang.zone import GangZone
from streams.policies.gpus import Gpus
from streams.policies.policy import ZoneContext


class HeldGpus(NamedTuple):
    """GPUs of a node that are held, and those that it has."""

    node: str
    held: int
    gpus: int


class GpuZone(GangZone[G, R]):
    """See `ZonePolicy`. It opens and closes nodes, and its snapshot has the closed ones."""

    def __init__(self, context: ZoneContext, gangs: Gangs[G, R], gang: Callable[..., G], gpus: Gpus) -> None:
        super().__init__(context, gangs, gang)
        self._gpus = gpus

    def nodes_changed(self, change: NodeChange) -> None:
        self._gpus.set_open(change.node, self._states.is_open(change.node))
        super().nodes_changed(change)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "nodes": self._gpus.describe()}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "closed": self._gpus.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self._gpus.restore(state["closed"])
        super().restore(state)

    def _too_small(self, gpus: Gpus) -> HeldGpus | None:
        """Return the first node that has fewer GPUs in another configuration than are held on it."""
        held = (HeldGpus(node, self._gpus.held_on(node), count) for node, count in gpus.nodes.items())
        return next((each for each in held if each.held > each.gpus), None)

    def _configure(self, context: ZoneContext) -> None:
        super()._configure(context)
        self._gpus.configure(context.zone)
