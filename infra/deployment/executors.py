"""Nodes that a deployment runs executors for: the executors' settings, and which nodes have come online."""

import json
from collections.abc import Iterator
from contextlib import suppress

from executors.node.settings import LONGEST_HEARTBEAT_S
from infra.deployment.cells import PresentCell
from infra.deployment.deployment_folders import Folders
from infra.log.reader import LogReader, events_in
from infra.log.target import Target
from infra.text import first_of
from schemas.cells import Zone
from schemas.fleet import FLEET, SignOfLife
from schemas.registry import runners_of
from streams.kafka.reader import ReadError

_HEARTBEATS_PER_NODE_TIMEOUT = 4
_REPORTS_PER_SLOT = 8
_LONGEST_PROGRESS_S = 5.0


_SHOWN_NODES = 6


def served_nodes(cell: PresentCell, folders: Folders) -> list[str]:
    """Return the nodes of a cell that a deployment serves: those of its first configuration, and later ones
    that an executor with its folders has served. Others may be served from another machine. A zone without
    commands needs no executors, unless it lends to a zone with commands."""
    first = {node.id for zone in cell.configuration.zones for node in zone.nodes}
    journals = folders.executors / cell.configuration.cell / "nodes"
    return [
        node
        for node in cell.nodes.by_id
        if _runners(_users(cell, node)) and (node in first or (journals / node).is_dir())
    ]


def executor_environment(cell: PresentCell, node: str, folders: Folders) -> dict[str, str]:
    """Return the environment variables of a node's executor for all zones that may use it."""
    configuration, users = cell.configuration, _users(cell, node)
    # An executor has one base model: that of the first zone whose jobs share one.
    base_models = [zone.base_model for zone in users if zone.policy.shares_base_model]
    present = cell.nodes.by_id[node]
    gpu_types = cell.nodes.zones[present.owner].gpu_types
    gpus = next(gpu.gpus for gpu in gpu_types if gpu.name == present.gpu_type)
    return {
        "MILLRACE_BASE_MODEL": next(iter(base_models), users[0].base_model),
        "MILLRACE_RUNNERS": json.dumps(_runners(users)),
        "MILLRACE_GPUS": str(gpus),
        "MILLRACE_MODEL_ROOT": str(folders.models),
        "MILLRACE_DATASET_ROOT": str(folders.datasets),
        "MILLRACE_OUTPUT_ROOT": str(folders.adapters),
        "MILLRACE_STATE_ROOT": str(folders.executors),
        "MILLRACE_NODE_HEARTBEAT_S": str(
            min(configuration.node_timeout_s / _HEARTBEATS_PER_NODE_TIMEOUT, LONGEST_HEARTBEAT_S)
        ),
        "MILLRACE_PROGRESS_S": str(min(configuration.slot_s / _REPORTS_PER_SLOT, _LONGEST_PROGRESS_S)),
    }


def _users(cell: PresentCell, node: str) -> list[Zone]:
    """Return the zone that a node serves; if its owner lends, also the owner and the borrowers, which it may
    serve later without a restart of its executor."""
    zones, present = cell.nodes.zones, cell.nodes.by_id[node]
    owner, ids = zones[present.owner], [present.zone]
    if owner.lending is not None:
        ids += [owner.id, *(borrower.zone for borrower in owner.lending.borrowers)]
    return [zones[id] for id in dict.fromkeys(ids)]


def _runners(zones: list[Zone]) -> list[str]:
    return sorted(frozenset[str]().union(*(runners_of(zone.policy.kind) for zone in zones)))


class NodesAwaited:
    """Reads the reports of nodes until each node has sent one."""

    def __init__(self, target: Target, nodes: set[tuple[str, str]]) -> None:
        """Await nodes, each named with its cell; earlier reports do not count.

        Raises:
            ReadError: the broker does not answer.
        """
        self._left = set(nodes)
        self._all = len(nodes)
        self._reader = LogReader(target, [target.topic(FLEET.name)], "end") if nodes else None

    @property
    def awaited(self) -> str:
        """Text about the nodes that are awaited; empty without any."""
        if not self._left:
            return ""
        return f"{first_of(sorted(node for _, node in self._left), _SHOWN_NODES)} to come online"

    def news(self) -> Iterator[str]:
        """Yield a line for each node that has come online since the last call."""
        if self._reader is None:
            return
        with suppress(ReadError):  # the broker restarts
            for envelope in events_in(self._reader.poll(0.0)):
                event = envelope.event
                if isinstance(event, SignOfLife) and (event.cell, event.node) in self._left:
                    self._left.remove((event.cell, event.node))
                    yield f"{event.node} is online, {self._all - len(self._left)} of {self._all} nodes"
        if not self._left:
            self.close()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.__exit__(None, None, None)
            self._reader = None
