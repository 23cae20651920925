"""Which nodes a deployment runs executors for, and how these are set up."""

import json

from infra.deployment.cells import PresentCell
from infra.deployment.folders import Folders
from schemas.registry import runners_of

_HEARTBEATS_PER_NODE_TIMEOUT = 4
_REPORTS_PER_SLOT = 8
_LONGEST_PROGRESS_S = 5.0


def served_nodes(cell: PresentCell, folders: Folders) -> list[str]:
    """The nodes of a cell that a deployment serves: those that the cell began with, and those registered
    since that an executor with its folders has served. Others may be served from another machine, and those
    of zones that command nothing need no executor."""
    first = {node.id for zone in cell.configuration.zones for node in zone.nodes}
    journals = folders.executors / cell.configuration.cell / "nodes"
    commanding = {zone.id for zone in cell.zones.values() if runners_of(zone.policy.kind)}
    return [
        node
        for node, zone in cell.zone_of.items()
        if zone in commanding and (node in first or (journals / node).is_dir())
    ]


def executor_environment(cell: PresentCell, node: str, folders: Folders) -> dict[str, str]:
    """The variables that set up an executor of a node for the zone that it serves at present."""
    configuration, zone = cell.configuration, cell.zones[cell.zone_of[node]]
    return {
        "MILLRACE_BASE_MODEL": zone.base_model,
        "MILLRACE_RUNNERS": json.dumps(sorted(runners_of(zone.policy.kind))),
        "MILLRACE_DATASET_ROOT": str(folders.datasets),
        "MILLRACE_OUTPUT_ROOT": str(folders.adapters),
        "MILLRACE_STATE_ROOT": str(folders.executors),
        "MILLRACE_NODE_HEARTBEAT_S": str(configuration.node_timeout_s / _HEARTBEATS_PER_NODE_TIMEOUT),
        "MILLRACE_PROGRESS_S": str(min(configuration.slot_s / _REPORTS_PER_SLOT, _LONGEST_PROGRESS_S)),
    }
