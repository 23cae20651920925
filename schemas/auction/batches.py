"""A zone's request to a solver under Titan: to schedule a batch of bids in the room that is left."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Annotated, Literal, Self

from pydantic import Field

from schemas.auction.evidence import NodeSlot
from schemas.base import MAX_MICROS, Amount, Identifier, Micros, PositiveSamples, Record, Samples, Slot
from schemas.kind import Problem, Solution

MAX_PLANS = 100_000
MAX_BOUND_MICROS = MAX_PLANS * MAX_MICROS


Count = Annotated[int, Field(ge=0)]
"""Computed, like an `Amount`: what bounds an input must not refuse an outcome."""


class OfferedNodes(Record):
    """A class of equal nodes, what a full one costs to run, and the room on each."""

    nodes: tuple[Identifier, ...]
    capacity_samples: Count
    """Capacity of one node in a slot (C_kp)."""
    capacity_quanta: Count
    """Capacity of one node beside the base model (C_km - r_b), in 1/1024 GiB."""
    full_cost_micros: tuple[float, ...]
    """Cost of running a fully used node, by slot."""
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


class BatchProblem(Problem):
    """Problem P as it stands (section 2.2).

    The plans that are sought maximise the welfare: bids less vendors' prices and operational costs.
    """

    kind: Literal["batch"] = "batch"
    relative_gap: float
    """The search ends when its plan is proven to be this close to the best."""
    first_slot: Slot
    """The slot that the room begins with."""
    classes: tuple[OfferedNodes, ...]
    bids: tuple[OfferedBid, ...]

    @property
    def counts(self) -> Mapping[str, int]:
        """See `Problem`."""
        return {"bids": len(self.bids)}


class SolvedPlan(Record):
    """A bid that the solution admits, and where it trains."""

    job_id: Identifier
    node_slots: Annotated[tuple[NodeSlot, ...], Field(min_length=1, max_length=10_000, fail_fast=True)]
    """Slot and node of each, ascending in slots."""


class BatchSolution(Solution):
    """Plans for a batch; bids without a plan are not admitted."""

    kind: Literal["batch"] = "batch"
    status: Literal["optimal", "feasible", "none"]
    """Proven within the gap; the best found in time; nothing found."""
    plans: Annotated[tuple[SolvedPlan, ...], Field(max_length=MAX_PLANS, fail_fast=True)]
    bound_micros: Annotated[int, Field(ge=0, le=MAX_BOUND_MICROS)] | None
    """No schedule of the batch in the room that was offered has a higher welfare."""

    @property
    def is_empty(self) -> bool:
        """By its status."""
        return self.status == "none"

    def shortened(self, excess_bytes: int) -> Self:
        """As many of the plans as fit, the first ones: plans that hold together hold without the last ones,
        too. What is left of them is no optimum any more."""
        # "feasible" is a byte longer than "optimal"; each plan goes with its comma.
        sizes = [len(plan.model_dump_json().encode()) + 1 for plan in reversed(self.plans)]
        dropped = 1 + sum(freed < excess_bytes + 1 for freed in accumulate(sizes))
        kept = self.plans[: max(len(self.plans) - dropped, 0)]
        return self.model_copy(update={"plans": kept, "status": "feasible" if kept else "none"})
