"""Events that compile every kernel of allocation and reclaims, and the zones that wait for the
compilation."""

from collections.abc import Iterator

from schemas.base import HOURS_PER_DAY, Event
from schemas.cells import Borrower, CellConfigured, GpuType, Lending, Node, Tariff, Zone
from schemas.clock import ClockTicked
from schemas.elastic.settings import ElasticPolicy, SchemeName
from schemas.elastic.workload import ElasticTerms, ElasticWorkload
from schemas.fleet import NodeOnline, RunStarted
from schemas.inference import CapacityOffered, CapacityReclaimed, InferenceLoadReported
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset

_CELL = "elastic"
_LENDER = "lender"
_LENT = "lent"
_NOTICE_S = 1.0
_INTERVAL_S = 10.0
_LENDING = Lending(headroom=0.0, notice_s=_NOTICE_S, borrowers=(Borrower(zone="lyra"),))
_GPU = "gpu"
_TARIFF = Tariff(name="none", micros_per_kwh=(0,) * HOURS_PER_DAY)


def searches(zone: Zone) -> bool:
    """Return whether rounds use a genetic search, which takes seconds if interpreted."""
    return isinstance(zone.policy, ElasticPolicy) and zone.policy.scheme == "pollux"


def warm_up_events() -> Iterator[Event]:
    """Yield the events of a cell in which each scheme with kernels scales jobs, and a loaned server with
    workers is reclaimed.

    If the compiled code can be cached on disk, later calls take under a second.
    """
    schemes: tuple[SchemeName, ...] = ("lyra", "pollux")
    yield CellConfigured(
        cell=_CELL,
        epoch_s=0.0,
        slot_s=_INTERVAL_S,
        duplicate_window_events=1,
        tariffs=(_TARIFF,),
        zones=(*(_zone(scheme, scheme) for scheme in schemes), _zone(_LENDER, "lyra", lends=True)),
    )
    yield ClockTicked(cell=_CELL, time_s=0.0)
    yield InferenceLoadReported(cell=_CELL, zone=_LENDER, time_s=0.0, load=0.0)
    yield CapacityOffered(cell=_CELL, zone=_LENDER, offer_id="offer", servers=(_LENT,))
    yield NodeOnline(cell=_CELL, node=_LENT, base_model="none", runners=("elastic",))
    for zone in schemes:
        # The lent server has the elastic job; the other job is too large for the remaining GPUs.
        for job, workers in (("elastic", (1, 3)), ("large", (2, 2))):
            yield JobSubmitted(
                cell=_CELL,
                job_id=f"{zone}-{job}",
                user="warm-up",
                zone=zone,
                workload=_workload(*workers),
                terms=ElasticTerms(),
            )
    yield ClockTicked(cell=_CELL, time_s=_INTERVAL_S)
    for zone in schemes:
        job_id = f"{zone}-elastic"
        node = _LENT if zone == "lyra" else f"{zone}-node"
        yield RunStarted(cell=_CELL, node=node, run_id=f"1/{job_id}", job_id=job_id, samples_done=0)
    yield ClockTicked(cell=_CELL, time_s=2 * _INTERVAL_S)
    due_s = 2 * _INTERVAL_S + _NOTICE_S
    yield CapacityReclaimed(cell=_CELL, zone=_LENDER, reclaim_id="reclaim", servers=1, due_s=due_s)


def _zone(id: str, scheme: SchemeName, *, lends: bool = False) -> Zone:
    names = (f"{id}-node", _LENT) if lends else (f"{id}-node",)
    return Zone(
        id=id,
        base_model="none",
        base_model_memory_gib=1.0,
        horizon_slots=1,
        gpu_types=(GpuType(name=_GPU, samples_per_s=2.0, memory_gib=2.0, gpus=2),),
        nodes=tuple(Node(id=name, gpu_type=_GPU, tariff=_TARIFF.name) for name in names),
        policy=ElasticPolicy(reference_gpu_type=_GPU, interval_s=_INTERVAL_S, scheme=scheme),
        lending=_LENDING if lends else None,
    )


def _workload(min_workers: int, max_workers: int) -> ElasticWorkload:
    return ElasticWorkload(
        work_samples=1_000,
        model="none",
        dataset=Dataset(path="none", samples=1),
        min_workers=min_workers,
        max_workers=max_workers,
        samples_per_s=1.0,
        fungible=True,
    )
