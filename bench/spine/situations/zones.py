"""Configured zones of many nodes: they are added to a cell, changed, and lose nodes."""

import random
from collections.abc import Iterator

from bench.spine.cells import CELL
from bench.spine.situations import FREE, ZONE, CellHistory, Situation, cell_of
from schemas.cells import AnyPolicy, GpuType, Node, Zone
from schemas.changes import ZoneConfigured
from schemas.elastic.settings import ElasticPolicy
from schemas.experts.settings import ExpertsPolicy
from schemas.merging.settings import MergingPolicy

_POLICY = "any"
_GPUS = 8
_LEAVING = 16
"""Inverse share of the nodes that are removed."""


def zone_situations(rng: random.Random, nodes: int) -> Iterator[Situation]:
    """Yield situations of a cell to which a zone of `nodes` nodes is added, and in which it is changed."""
    speed = rng.uniform(4.5, 9.0)
    for name, policy, runner in (
        ("experts", ExpertsPolicy(), "moe"),
        ("elastic", ElasticPolicy(reference_gpu_type="V", interval_s=60.0), "elastic"),
        ("merging", MergingPolicy(), "tuner"),
    ):
        what = f"{name}, {nodes} nodes"
        history = CellHistory(cell_of(_zone(ZONE, 2, policy)), (runner,))
        large = _zone("large", nodes, policy)
        added = _configured(large)
        yield history.before(_POLICY, f"zone added: {what}", added)
        history.send(added)
        history.join(large, (runner,))
        larger = _zone("large", nodes + 1, policy)
        faster = GpuType(name="V", samples_per_s=speed, memory_gib=64.0 * _GPUS, gpus=_GPUS)
        changed = larger.model_copy(update={"nodes": larger.nodes[:-1], "gpu_types": (faster,)})
        smaller = larger.model_copy(
            update={"nodes": tuple(node for place, node in enumerate(larger.nodes) if place % _LEAVING)}
        )
        yield from history.before_each(
            _POLICY,
            (
                (f"zone gains a node: {what}", _configured(larger)),
                (f"zone changed: {what}", _configured(changed)),
                (f"zone gives up nodes: {what}", _configured(smaller)),
            ),
        )


def _configured(zone: Zone) -> ZoneConfigured:
    return ZoneConfigured(cell=CELL, zone=zone)


def _zone(id: str, nodes: int, policy: AnyPolicy) -> Zone:
    return Zone(
        id=id,
        base_model="any",
        base_model_memory_gib=0.5,
        horizon_slots=1,
        gpu_types=(GpuType(name="V", samples_per_s=4.0, memory_gib=32.0 * _GPUS, gpus=_GPUS),),
        nodes=tuple(Node(id=f"{id}{number}", gpu_type="V", tariff=FREE.name) for number in range(nodes)),
        policy=policy,
    )
