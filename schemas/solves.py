"""Long solves: what a cell asks of a solver, as a decision, and what comes back, as an event.

A cell never waits for a solver. It asks with all that the problem needs, and checks the answer against the
state that it finds.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import MAX_MICROS, Identifier, Micros, PositiveSamples, Record, Samples, Slot
from schemas.decisions import Amount, NodeSlot

MAX_PLANS = 100_000
MAX_BOUND_MICROS = MAX_PLANS * MAX_MICROS


Count = Annotated[int, Field(ge=0)]
"""Computed, like an `Amount`: what bounds an input must not refuse an outcome."""


class OfferedNodes(Record):
    """A class of equal nodes, what a full one costs to run, and the room on each."""

    nodes: tuple[Identifier, ...]
    capacity_samples: Count
    """Of one node in a slot (C_kp)."""
    capacity_quanta: Count
    """Of one node beside the base model (C_km - r_b), in 1/1024 GiB."""
    full_cost_micros: tuple[float, ...]
    """What a fully used node costs to run, by slot."""
    free_samples: tuple[tuple[Count, ...], ...]
    """By slot and node; none on a node that is down."""
    free_quanta: tuple[tuple[Count, ...], ...]
    """Memory by slot and node, in 1/1024 GiB."""


class OfferedBid(Record):
    """A bid of the batch, with the vendor that was drawn for it."""

    job_id: Identifier
    bid_micros: Micros
    work_samples: PositiveSamples
    slot_samples: tuple[Samples, ...]
    """Trained in a slot by class of nodes (s_ik); 0 where the task cannot run."""
    memory_quanta: Count
    """r_i, in 1/1024 GiB."""
    vendor: Identifier | None
    vendor_micros: Amount
    """q_in."""
    ready_slot: Slot
    """The first slot in which it may train, its vendor's delay over."""
    last_slot: Slot
    """The last slot that ends by its deadline."""


class SolveRequested(Record):
    """A batch of bids is to be scheduled in the room that is left: problem P as it stands (section 2.2).

    The plans that are sought maximise the welfare: bids less vendors' prices and operational costs.
    """

    TYPE: ClassVar = "millrace.solve.requested.v1"

    zone: Identifier
    request_id: Identifier
    """Of this zone's requests."""
    reason: Literal["batch_due"]
    time_limit_s: float
    relative_gap: float
    first_slot: Slot
    """The slot that the room begins with."""
    classes: tuple[OfferedNodes, ...]
    bids: tuple[OfferedBid, ...]


class SolvedPlan(Record):
    """A bid that the solution admits, and where it trains."""

    job_id: Identifier
    node_slots: Annotated[tuple[NodeSlot, ...], Field(min_length=1, max_length=10_000, fail_fast=True)]
    """Slot and node of each, ascending in slots."""


class SolveFinished(Record):
    """What a solver found for a cell's request within its time; bids without a plan are not admitted."""

    TYPE: ClassVar = "millrace.solve.finished.v1"

    cell: Identifier
    zone: Identifier
    request_id: Identifier
    status: Literal["optimal", "feasible", "none"]
    """Proven within the gap; the best found in time; nothing found."""
    plans: Annotated[tuple[SolvedPlan, ...], Field(max_length=MAX_PLANS, fail_fast=True)]
    bound_micros: Annotated[int, Field(ge=0, le=MAX_BOUND_MICROS)] | None
    """No schedule of the batch in the room that was offered has a higher welfare."""
    solve_s: Annotated[float, Field(ge=0, le=31_536_000)]
    """What the solver took, by its own clock."""
