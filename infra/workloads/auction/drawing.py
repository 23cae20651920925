"""Drawing of the jobs of auction zones for simulations."""

from typing import Annotated

from pydantic import Field

from infra.workloads.arrivals import arrivals_of
from infra.workloads.auction.bids import BidDemands, draw_workload
from infra.workloads.drawing import Drawing, DrawingOptions
from infra.workloads.timed import TimedEvent
from schemas.base import Event

DEFAULT_JOBS = 200
DEFAULT_SPAN_SLOTS = 72.0


class AuctionOptions(DrawingOptions):
    """Options of drawn bids, as in `BidDemands`."""

    median_work_slots: Annotated[float, Field(ge=0.001, le=10_000)] = 3.0


def draw(drawing: Drawing) -> list[TimedEvent[Event]]:
    """Draw bids, and a standing quote of each of the cell's vendors; a trace gives arrivals and sizes.

    Raises:
        WorkloadError: an option is invalid, a zone's settings give no sizes for bids, or the trace is too
            short.
        TraceError: the trace is invalid.
    """
    demands = BidDemands(median_work_slots=drawing.options_as(AuctionOptions).median_work_slots)
    jobs = DEFAULT_JOBS if drawing.jobs is None else drawing.jobs
    span_s = DEFAULT_SPAN_SLOTS * drawing.cell.slot_s if drawing.span_s is None else drawing.span_s
    arrivals = arrivals_of(drawing.trace, jobs, span_s, drawing.seed)
    cell = drawing.cell.model_copy(update={"zones": drawing.zones})
    return draw_workload(cell, arrivals, cell.epoch_s, drawing.seed, demands).inputs(cell.epoch_s)
