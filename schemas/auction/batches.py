"""A zone's request to a solver under Titan: to schedule a batch of bids in the remaining room."""

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
"""A computed count, without the upper bound of inputs, as `Amount`."""


class OfferedNodes(Record):
    """A class of equal nodes, the cost of a full one, and the room on each."""

    nodes: tuple[Identifier, ...]
    capacity_samples: Count
    """Capacity of one node in a slot (C_kp)."""
    capacity_quanta: Count
    """Memory of one node besides the base model (C_km - r_b), in 1/1024 GiB."""
    full_cost_micros: tuple[float, ...]
    """Cost of running a fully used node, by slot."""
    free_samples: tuple[tuple[Count, ...], ...]
    """Free samples by slot and node; 0 on a node that is down."""
    free_quanta: tuple[tuple[Count, ...], ...]
    """Free memory by slot and node, in 1/1024 GiB."""


class OfferedBid(Record):
    """A bid of the batch, with the vendor that was drawn for it."""

    job_id: Identifier
    bid_micros: Micros
    work_samples: PositiveSamples
    slot_samples: tuple[Samples, ...]
    """Samples trained in a slot, by class of nodes (s_ik); 0 if the task cannot run there."""
    memory_quanta: Count
    """Memory (r_i), in 1/1024 GiB."""
    vendor: Identifier | None
    vendor_micros: Amount
    """Price of the vendor (q_in)."""
    ready_slot: Slot
    """First slot in which it may train, after its vendor's delay."""
    last_slot: Slot
    """The last slot that ends by its deadline."""


class BatchProblem(Problem):
    """Problem P at one time (section 2.2).

    Its solution maximises the welfare: bids less vendors' prices and operational costs.
    """

    kind: Literal["batch"] = "batch"
    relative_gap: float
    """The search ends when its plan is proven to be this close to the best."""
    first_slot: Slot
    """First slot of the room."""
    classes: tuple[OfferedNodes, ...]
    bids: tuple[OfferedBid, ...]

    @property
    def counts(self) -> Mapping[str, int]:
        """Sizes of the problem, see `Problem`."""
        return {"bids": len(self.bids)}


class SolvedPlan(Record):
    """A bid that the solution admits, and its node-slots."""

    job_id: Identifier
    node_slots: Annotated[tuple[NodeSlot, ...], Field(min_length=1, max_length=10_000, fail_fast=True)]
    """Slots with their nodes, in ascending order."""


class BatchSolution(Solution):
    """Plans for a batch; bids without a plan are not admitted."""

    kind: Literal["batch"] = "batch"
    status: Literal["optimal", "feasible", "none"]
    """Result: proven within the gap, the best found in time, or no solution."""
    plans: Annotated[tuple[SolvedPlan, ...], Field(max_length=MAX_PLANS, fail_fast=True)]
    bound_micros: Annotated[int, Field(ge=0, le=MAX_BOUND_MICROS)] | None
    """Upper bound of the welfare of all schedules of the batch in the offered room."""

    @property
    def is_empty(self) -> bool:
        """Whether the search found no solution."""
        return self.status == "none"

    def shortened(self, excess_bytes: int) -> Self:
        """Return the first plans, as many as fit: they are valid without the others, but no longer
        optimal."""
        # "feasible" is a byte longer than "optimal"; each plan is removed with its comma.
        sizes = [len(plan.model_dump_json().encode()) + 1 for plan in reversed(self.plans)]
        dropped = 1 + sum(freed < excess_bytes + 1 for freed in accumulate(sizes))
        kept = self.plans[: max(len(self.plans) - dropped, 0)]
        return self.model_copy(update={"plans": kept, "status": "feasible" if kept else "none"})
