"""Drawing of the jobs of merging zones for simulations."""

import random
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from infra.workloads.arrivals import arrivals_of
from infra.workloads.drawing import Drawing, DrawingOptions
from infra.workloads.merging.tasks import GPU_COUNTS, LEARNING_RATES, draw_tasks, tasks_by_size
from infra.workloads.timed import TimedEvent, WorkloadError, check_time
from schemas.base import Event
from schemas.cells import Zone
from schemas.jobs import JobSubmitted
from schemas.merging.settings import STAGES_PER_PIPELINE
from schemas.merging.workload import MergingTerms

DEFAULT_JOBS = 160
"""Number of jobs that, with the default options and span, request about 0.8 of the GPU time of 32 GPUs, each
alone on one."""
DEFAULT_SPAN_S = 3 * 3_600.0

_Share = Annotated[float, Field(ge=0, le=1)]


class MergingOptions(DrawingOptions):
    """Datasets and shares of the kinds of drawn jobs."""

    datasets: Annotated[int, Field(ge=1, le=1_000)] = 12
    sharing_share: _Share = 0.9
    """Share of jobs that may be merged with others."""
    pipeline_share: _Share = 0.0
    """Share of jobs that are cut into stages over GPUs."""


def draw(drawing: Drawing) -> list[TimedEvent[Event]]:
    """Draw jobs that arrive in bursts like those of a real cluster, or as a trace has them. The work of a job
    depends on its dataset; only the order of a trace's GPU times is kept.

    Raises:
        WorkloadError: an option is invalid, the trace is too short, or a zone cannot run the pipelines.
        TraceError: the trace is invalid.
    """
    options = drawing.options_as(MergingOptions)
    if options.pipeline_share > 0:
        _check_pipelines(drawing.zones)
    jobs = DEFAULT_JOBS if drawing.jobs is None else drawing.jobs
    arrivals = arrivals_of(
        drawing.trace, jobs, DEFAULT_SPAN_S if drawing.span_s is None else drawing.span_s, drawing.seed
    )
    check_time(drawing.cell.epoch_s + arrivals[-1].offset_s)
    tasks = draw_tasks(options.datasets, random.Random(f"{drawing.seed}/tasks"))
    draws = random.Random(f"{drawing.seed}/jobs")
    zones, weights = drawing.zones, [_gpus(zone) for zone in drawing.zones]
    drawn: list[TimedEvent[Event]] = []
    for number, (arrival, task) in enumerate(
        zip(arrivals, tasks_by_size(tasks, [arrival.gpu_s for arrival in arrivals]), strict=True)
    ):
        (zone,) = draws.choices(zones, weights)
        (gpus,) = draws.choices(list(GPU_COUNTS), list(GPU_COUNTS.values()))
        workload = task.workload(
            zone.base_model,
            draws.choice(LEARNING_RATES),
            draws.random() < options.sharing_share,
            gpus,
            draws.random() < options.pipeline_share,
        )
        submission = JobSubmitted(
            cell=drawing.cell.cell,
            job_id=f"{zone.id}-{drawing.seed}-{number:04d}",
            user=arrival.user,
            zone=zone.id,
            workload=workload,
            terms=MergingTerms(),
        )
        drawn.append(TimedEvent(drawing.cell.epoch_s + arrival.offset_s, submission))
    return drawn


def _check_pipelines(zones: Sequence[Zone]) -> None:
    for zone in zones:
        most = max(gpu.gpus for gpu in zone.gpu_types)
        if most < STAGES_PER_PIPELINE:
            raise WorkloadError(
                f"zone {zone.id} has nodes of {most} GPUs, and a pipeline-parallel job needs "
                f"{STAGES_PER_PIPELINE} on one: leave out --draw pipeline_share"
            )


def _gpus(zone: Zone) -> int:
    gpus = {gpu.name: gpu.gpus for gpu in zone.gpu_types}
    return sum(gpus[node.gpu_type] for node in zone.nodes)
