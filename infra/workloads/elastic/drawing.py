"""Drawing of the jobs of elastic zones for simulations."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Literal, cast

from pydantic import Field

from infra.workloads.drawing import Drawing, DrawingOptions
from infra.workloads.elastic.calibrated import generate_requests
from infra.workloads.elastic.jobs import Abilities, draw_jobs, linear, lossy, submissions
from infra.workloads.elastic.requests import (
    DAY_S,
    LOAD,
    JobRequest,
    requests_as_recorded,
    requests_from_trace,
    rounding_note,
)
from infra.workloads.timed import TimedEvent, WorkloadError
from infra.workloads.trace import TraceJob, read_trace
from schemas.base import Event
from schemas.cells import Zone
from schemas.elastic.settings import ElasticPolicy

DEFAULT_SPAN_S = DAY_S

_SCALING = {"linear": linear, "lossy": lossy}

_Share = Annotated[float, Field(ge=0, le=1)]


class ElasticOptions(DrawingOptions):
    """Demands and abilities of jobs, with the shares of `Abilities`. The scenario is that of the zone's
    policy."""

    elastic_share: _Share | None = None
    elastic_are_fungible: bool = True
    heterogeneous_share: _Share = 0.10
    checkpoint_share: _Share = 0.0
    scaling: Literal["linear", "lossy"] = "linear"
    load: Annotated[float, Field(gt=0, le=100)] = LOAD
    """GPU time that the jobs of a trace request, over that of the zone's own servers."""
    as_recorded: bool = False
    """Whether all jobs of the trace are used, at its own times, for files that were made for the zone."""


def draw(drawing: Drawing) -> list[TimedEvent[Event]]:
    """Draw jobs for each zone by the size of its own servers. They are generated like the jobs of the thesis'
    trace (section 3.7.1), or drawn from another trace until they give the load.

    Raises:
        WorkloadError: an option is invalid, or the trace has too little work.
        TraceError: the trace is invalid.
    """
    options = drawing.options_as(ElasticOptions)
    traced = None if drawing.trace is None else read_trace(drawing.trace)
    if traced is not None and (note := rounding_note(traced)) is not None:
        drawing.note(f"{drawing.trace}: {note}")
    drawn: list[TimedEvent[Event]] = []
    for number, (zone, jobs) in enumerate(_shares(drawing.zones, drawing.jobs)):
        policy = cast(ElasticPolicy, zone.policy)
        abilities = Abilities(
            scenario=policy.scenario,
            elastic_share=options.elastic_share,
            elastic_are_fungible=options.elastic_are_fungible,
            heterogeneous_share=options.heterogeneous_share,
            checkpoint_share=options.checkpoint_share,
            scaling=_SCALING[options.scaling],
        )
        # Zones of one cell must not get the same jobs.
        seed = drawing.seed + number
        gpus = zone.gpus_by_node.values()
        requests = _requests(drawing, traced, options, sum(gpus), jobs, seed)
        # Every worker fits on each server.
        elastic_jobs = draw_jobs(requests, abilities, seed, min(gpus), id_prefix=f"{zone.id}-{drawing.seed}")
        drawn += submissions(elastic_jobs, drawing.cell.cell, zone.id, drawing.cell.epoch_s)
    return sorted(drawn, key=lambda timed: timed.time_s)


def _requests(
    drawing: Drawing,
    traced: Sequence[TraceJob] | None,
    options: ElasticOptions,
    gpus: int,
    jobs: int | None,
    seed: int,
) -> list[JobRequest]:
    days = (DEFAULT_SPAN_S if drawing.span_s is None else drawing.span_s) / DAY_S
    if traced is None:
        return generate_requests(seed, gpus, days, jobs)
    if jobs is not None:
        raise WorkloadError(
            "as many jobs are taken from a trace as load an elastic zone, and no given number of them: give "
            "the load in place of it (--draw load=0.5)"
        )
    try:
        if options.as_recorded:
            return requests_as_recorded(traced, gpus, seed)
        return requests_from_trace(traced, gpus, days, seed, options.load)
    except WorkloadError as error:
        raise WorkloadError(f"{drawing.trace}: {error}") from None


def _shares(zones: Sequence[Zone], jobs: int | None) -> Iterator[tuple[Zone, int | None]]:
    """Yield each zone that gets any jobs with its number of jobs, in proportion to its GPUs."""
    if jobs is None:
        yield from ((zone, None) for zone in zones)
        return
    cumulative = [0, *accumulate(sum(zone.gpus_by_node.values()) for zone in zones)]
    ends = [jobs * gpus // cumulative[-1] for gpus in cumulative]
    for zone, (first, end) in zip(zones, pairwise(ends), strict=True):
        if end > first:
            yield zone, end - first
