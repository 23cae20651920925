"""Drawing of the jobs of experts zones for simulations."""

import random
from typing import Annotated

from pydantic import Field

from infra.workloads.arrivals import arrivals_of
from infra.workloads.drawing import Drawing, DrawingOptions
from infra.workloads.timed import TimedEvent, check_time
from schemas.base import Event
from schemas.experts.commands import MoeWorkload
from schemas.experts.workload import (
    Conversion,
    ExpertsTerms,
    GatingRule,
    MoeServeWorkload,
    MoeTrainWorkload,
    Requests,
)
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset

DEFAULT_JOBS = 40
DEFAULT_SPAN_S = 3 * 3_600.0
RANKS = {1: 0.2, 2: 0.3, 4: 0.3, 8: 0.2}
"""Shares of the jobs by their number of ranks; a zone with fewer devices gets no larger ones."""
EXPERTS = 16
LEAST_S, MOST_S = 300.0, 7_200.0
"""Bounds of the duration of a drawn job at the speed of simulated ranks. A trace's GPU times are cut to this
range."""
_TRAINED_PER_S = 64
"""Samples of a simulated rank in a second."""
_SERVED_PER_S = 24
"""Requests of a simulated service in a second."""


class ExpertsOptions(DrawingOptions):
    """Shares of the kinds of drawn jobs."""

    serving_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of services; the other jobs train."""
    adaptive_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the jobs that train with adaptive gating; the others have two experts for each token."""


def draw(drawing: Drawing) -> list[TimedEvent[Event]]:
    """Draw jobs that arrive in bursts like those of a real cluster, or as a trace has them.

    Raises:
        WorkloadError: an option is invalid, or the trace is too short.
        TraceError: the trace is invalid.
    """
    options = drawing.options_as(ExpertsOptions)
    jobs = DEFAULT_JOBS if drawing.jobs is None else drawing.jobs
    span_s = DEFAULT_SPAN_S if drawing.span_s is None else drawing.span_s
    arrivals = arrivals_of(drawing.trace, jobs, span_s, drawing.seed)
    check_time(drawing.cell.epoch_s + arrivals[-1].offset_s)
    rng = random.Random(f"{drawing.seed}/experts")
    devices = {zone.id: sum(zone.gpus_by_node.values()) for zone in drawing.zones}
    drawn: list[TimedEvent[Event]] = []
    for number, arrival in enumerate(arrivals):
        (zone,) = rng.choices(drawing.zones, list(devices.values()))
        ranks = _ranks(devices[zone.id], rng)
        duration_s = min(max(arrival.gpu_s / ranks, LEAST_S), MOST_S)
        submission = JobSubmitted(
            cell=drawing.cell.cell,
            job_id=f"{zone.id}-{drawing.seed}-{number:04d}",
            user=arrival.user,
            zone=zone.id,
            workload=_workload(options, ranks, duration_s, rng),
            terms=ExpertsTerms(),
        )
        drawn.append(TimedEvent(drawing.cell.epoch_s + arrival.offset_s, submission))
    return drawn


def _workload(options: ExpertsOptions, ranks: int, duration_s: float, rng: random.Random) -> MoeWorkload:
    serves, is_adaptive = (rng.random() < share for share in (options.serving_share, options.adaptive_share))
    name = f"drawn/moe-{rng.randrange(4)}"
    if serves:
        requests = round(duration_s * _SERVED_PER_S)
        prompts = Requests(dataset=Dataset(path=f"{name}-prompts.jsonl", samples=1_000), most=requests)
        return MoeServeWorkload(model=name, requests=prompts, ranks=ranks, most_experts_per_device=EXPERTS)
    gating = GatingRule(mode="adaptive", threshold=0.2) if is_adaptive else GatingRule(mode="top2")
    return MoeTrainWorkload(
        work_samples=round(duration_s * _TRAINED_PER_S * ranks),
        model=name,
        conversion=Conversion(experts=EXPERTS),
        dataset=Dataset(path=f"{name}.jsonl", samples=10_000),
        gating=gating,
        ranks=ranks,
    )


def _ranks(devices: int, rng: random.Random) -> int:
    fitting = {ranks: share for ranks, share in RANKS.items() if ranks <= devices}
    (ranks,) = rng.choices(list(fitting), list(fitting.values()))
    return ranks
