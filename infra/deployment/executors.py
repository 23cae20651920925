"""Nodes for which a deployment runs executors, and the executors' settings."""

import json

from executors.node.settings import LONGEST_HEARTBEAT_S
from infra.deployment.cells import PresentCell
from infra.deployment.folders import Folders
from schemas.cells import Zone
from schemas.registry import runners_of

_HEARTBEATS_PER_NODE_TIMEOUT = 4
_REPORTS_PER_SLOT = 8
_LONGEST_PROGRESS_S = 5.0


def served_nodes(cell: PresentCell, folders: Folders) -> list[str]:
    """Return the nodes of a cell that a deployment serves: those of its first configuration, and later ones
    that an executor with its folders has served. Others may be served from another machine. Nodes of zones
    that neither send commands nor lend to zones that do need no executor."""
    first = {node.id for zone in cell.configuration.zones for node in zone.nodes}
    journals = folders.executors / cell.configuration.cell / "nodes"
    return [
        node
        for node in cell.zone_of
        if _runners(_users(cell, node)) and (node in first or (journals / node).is_dir())
    ]


def executor_environment(cell: PresentCell, node: str, folders: Folders) -> dict[str, str]:
    """Return the environment variables of a node's executor for all zones that may use it."""
    configuration, users = cell.configuration, _users(cell, node)
    # An executor has one base model: that of the first zone whose jobs share one.
    base_models = [zone.base_model for zone in users if zone.policy.shares_base_model]
    gpu_types = cell.zones[cell.owner_of[node]].gpu_types
    gpus = next(gpu.gpus for gpu in gpu_types if gpu.name == cell.gpu_type_of[node])
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
    owner = cell.zones[cell.owner_of[node]]
    ids = [cell.zone_of[node]]
    if owner.lending is not None:
        ids += [owner.id, *(borrower.zone for borrower in owner.lending.borrowers)]
    return [cell.zones[id] for id in dict.fromkeys(ids)]


def _runners(zones: list[Zone]) -> list[str]:
    return sorted(frozenset[str]().union(*(runners_of(zone.policy.kind) for zone in zones)))
