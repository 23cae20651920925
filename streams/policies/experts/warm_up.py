"""Events that compile every kernel of placements."""

from collections.abc import Iterator
from typing import Any

from schemas.base import HOURS_PER_DAY, Event
from schemas.cells import CellConfigured, GpuType, Node, Tariff, Zone
from schemas.clock import ClockTicked
from schemas.experts.reports import ExpertsProfiled, ExpertsRouted, LayerRouting
from schemas.experts.settings import ExpertsPolicy
from schemas.experts.workload import ExpertsTerms, MoeServeWorkload, Requests
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset

_CELL, _ZONE, _NODE, _JOB = "experts", "moe", "node", "service"
_DEVICES = 2
_TARIFF = Tariff(name="none", micros_per_kwh=(0,) * HOURS_PER_DAY)


def warm_up_events() -> Iterator[Event]:
    """Yield the events of a cell that places the experts of a service, and places them again after their
    popularity has changed. If the compiled code is cached on disk, later calls take under a second.
    """
    gpu = GpuType(name="gpu", samples_per_s=1.0, memory_gib=1.0, gpus=_DEVICES)
    zone = Zone(
        id=_ZONE,
        base_model="none",
        base_model_memory_gib=0.5,
        horizon_slots=1,
        gpu_types=(gpu,),
        nodes=(Node(id=_NODE, gpu_type=gpu.name, tariff=_TARIFF.name),),
        policy=ExpertsPolicy(lasting_reports=1, cool_down_s=0.0, least_tokens_per_device=1),
    )
    yield CellConfigured(
        cell=_CELL, epoch_s=0.0, slot_s=10.0, duplicate_window_events=1, tariffs=(_TARIFF,), zones=(zone,)
    )
    requests = Requests(dataset=Dataset(path="none", samples=1))
    yield JobSubmitted(
        cell=_CELL,
        job_id=_JOB,
        user="warm-up",
        zone=_ZONE,
        workload=MoeServeWorkload(model="none", requests=requests, ranks=_DEVICES, most_experts_per_device=4),
        terms=ExpertsTerms(),
    )
    yield ClockTicked(cell=_CELL, time_s=0.0)
    run: dict[str, Any] = {
        "cell": _CELL,
        "node": _NODE,
        "run_id": f"1/{_JOB}",
        "job_id": _JOB,
        "samples_done": 0,
    }
    skewed = LayerRouting(tokens=(1_000, 300, 100, 30, 10))
    turned = LayerRouting(tokens=(10, 100, 30, 1_000, 300))
    yield ExpertsProfiled(**run, layers=(skewed,), path_length=1, paths=0, accuracy=None)
    for _ in range(3):
        yield ExpertsRouted(**run, layers=(turned,), batches=1, interval_s=1.0)
    yield ClockTicked(cell=_CELL, time_s=10.0)
