"""An admitted job of an auction zone, from its admission to its end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np

from schemas.auction.bids import Task
from schemas.lora import Dataset, LoraWorkload
from solvers.auction.market.demand import Demand, ProfiledSpeed, Profiles
from solvers.auction.market.market import Placement
from solvers.auction.mechanism.mechanism import Counted
from streams.cell.jobs import Job
from streams.cell.packing import pack, unpack
from streams.cell.states import NO_STATE, from_state, state_of
from streams.policies.auction.vendor_order import ORDER_BYTES, VendorOrder

Setback = Literal[
    "node_lost", "node_leaving", "behind_plan", "run_failed", "delivery_late", "delivery_failed"
]
"""Reasons for which a job's remaining work is replanned, at the provider's cost."""

LATE_REPORT_SLOTS = 32
"""Slots in which a missing report of a run is awaited. This needs a user who is responsible for the run's
speed, and an executor that has not failed since."""
NODE_LEFT = -1
"""Replaces the row of a node that has left the zone, in past slots."""


def run_id_of(slot: int, job_id: str) -> str:
    return f"{slot}/{job_id}"


def slot_of_run(run_id: str, job_id: str) -> int | None:
    """Return the slot of a job's run; None if the job has no runs with such ids."""
    slot, _, job = run_id.partition("/")
    is_number = slot.isascii() and slot.isdecimal() and slot == str(int(slot))
    return int(slot) if is_number and job == job_id else None


ZONE_BYTES = 512
"""Most bytes of a job in a snapshot, besides its plan: its id and numbers."""
_HELD_NODE_SLOT_BYTES = 48
"""Packed bytes of each node-slot of a plan: (slot, row), (slot, quota), and (slot, samples) of an ordered
run."""
_PRICED_BYTES = 13
"""Packed bytes of each node-slot whose prices a job has raised: (slot, row)."""
NODE_SLOT_BYTES = _HELD_NODE_SLOT_BYTES + _PRICED_BYTES
"""Most bytes that each node-slot of a new plan adds."""


_PROFILED_BYTES = 176
"""Packed bytes of a profile: the name of its GPU type, two numbers and its source."""


def profiles_bytes(profiles: Profiles) -> int:
    """Return the most bytes of a job's profiles in a snapshot."""
    return _PROFILED_BYTES * len(profiles)


def planned_bytes(placement: Placement, is_ordered: bool) -> int:
    """Return the most bytes of a job with a plan in a snapshot.

    Args:
        is_ordered: whether its pre-processing is ordered.
    """
    return ZONE_BYTES + NODE_SLOT_BYTES * len(placement.slots) + ORDER_BYTES * is_ordered


@dataclass
class PlannedJob:
    """A live admitted job and its plan."""

    job: Job
    bid_micros: int
    payment_micros: int
    refundable_micros: int
    """Part of the payment for operation: the most that a withdrawal returns, whatever the cost of node-slots
    from later replanning."""
    density_micros: float
    """Density b-bar_il of the award, for the prices of node-slots added later."""
    counted: Counted
    """Its bid's part of the certificate, which a withdrawal removes."""
    welfare_micros: int
    """Welfare of its plan at its admission, which a withdrawal subtracts from the planned welfare."""
    ready_slot: int
    """First slot in which it may train, after its vendor's delivery."""
    last_slot: int
    """Last slot that ends by its deadline."""
    demand: Demand = field(metadata=NO_STATE)
    """Demand that the node-slots ahead are reserved with."""
    order: VendorOrder | None = None
    """Latest order of its pre-processing; None if none was ordered."""
    rows: dict[int, int] = field(default_factory=dict)
    """Node row by slot, past slots included (x_ikt = 1); see `NODE_LEFT`."""
    quotas: dict[int, int] = field(default_factory=dict)
    """Samples planned by slot."""
    priced: set[tuple[int, int]] = field(default_factory=set)
    """Node-slots ahead (slot, row) whose prices it has raised, including those given up since."""
    reported_slot: int = -1
    """Last slot that was reported complete."""
    run_slot: int = -1
    """Last slot whose run was reported to have started."""
    run_base_samples: int = 0
    """Samples done at the start of that run."""
    lacking_samples: int = 0
    """Samples that its runs fell short of the user's declared speed in their time, less later excess, since
    the last replanning."""
    runs: dict[int, int | None] = field(default_factory=dict)
    """Samples done at the start of each ordered run without a reported end, by slot: a node may still have
    the run. None if its start was not reported, or its executor was lost since."""
    profiles: dict[str, ProfiledSpeed] = field(default_factory=dict)
    """Profiles by GPU type that its admission assumed: replanning assumes the same."""
    setback: Setback | None = None
    """Reason for which it is to be replanned; None if it is not."""
    _packed: bytes | None = field(default=None, metadata=NO_STATE)
    """Cache of `packed`; None after a change."""
    _planned: tuple[int, int] | None = field(default=None, metadata=NO_STATE)
    """Cache of `planned_after`: a slot and its samples; None after a change of the plan. Every report needs
    it."""

    @property
    def job_id(self) -> str:
        return self.job.job_id

    @cached_property
    def workload(self) -> LoraWorkload:
        """Workload of the job."""
        return Task.of(self.job).workload

    def describe(self, nodes: Sequence[str], present_slot: int) -> dict[str, Any]:
        """Describe it for an operator, in values that JSON has.

        Args:
            nodes: by row.
            present_slot: the slot whose commands are out.
        """
        return {
            **self.job.describe(),
            "state": self._phase(present_slot),
            "bid_micros": self.bid_micros,
            "payment_micros": self.payment_micros,
            "refundable_micros": self.refundable_micros,
            "ready_slot": self.ready_slot,
            "last_slot": self.last_slot,
            "setback": self.setback,
            **({} if self.order is None else {"order": self.order.describe()}),
            "lacking_samples": self.lacking_samples,
            "runs": [{"slot": slot, "from_samples": samples} for slot, samples in self.runs.items()],
            "plan": [
                {
                    "slot": slot,
                    "node": None if row == NODE_LEFT else nodes[row],
                    "samples": self.quotas[slot],
                }
                for slot, row in sorted(self.rows.items())
            ],
        }

    def _phase(self, present_slot: int) -> str:
        if self.setback is not None:
            return "replanning"
        if self.awaits_delivery:
            return "awaiting_delivery"
        if self.quotas.get(present_slot):
            return "running"
        return "paused" if self.started(present_slot) else "planned"

    @property
    def state_bytes(self) -> int:
        """Most bytes of it in a snapshot."""
        held = _HELD_NODE_SLOT_BYTES * len(self.rows) + _PRICED_BYTES * len(self.priced)
        order = ORDER_BYTES * (self.order is not None)
        return ZONE_BYTES + held + order + profiles_bytes(self.profiles)

    @property
    def awaits_delivery(self) -> bool:
        """Whether its data were ordered and not delivered yet."""
        return self.order is not None and self.order.delivery is None

    @property
    def dataset(self) -> Dataset:
        """Data to train on: the delivered data, if a delivery was ordered."""
        dataset = self.workload.dataset
        delivery = None if self.order is None else self.order.delivery
        if delivery is None:
            return dataset
        return dataset.model_copy(update={"path": delivery.path, "samples": delivery.samples})

    def set_order(self, order: VendorOrder) -> None:
        """Replace the order of one that has an order."""
        self.order = order
        self._packed = None

    @property
    def remaining_samples(self) -> int:
        """Samples not yet reported done."""
        return max(self.workload.work_samples - self.job.samples_done, 0)

    def planned_after(self, slot: int) -> int:
        """Return the samples planned in the slots after a slot."""
        if self._planned is None or self._planned[0] != slot:
            self._planned = slot, sum(quota for ahead, quota in self.quotas.items() if ahead > slot)
        return self._planned[1]

    def note_lacking(self, lacking_samples: int) -> None:
        """Count samples that a run fell short of the declared speed; an excess is negative."""
        self.lacking_samples = max(self.lacking_samples + lacking_samples, 0)
        self._packed = None

    def miss_slots(self, first_slot: int) -> bool:
        """Remove the slots before `first_slot` from the plan, in which nothing was trained. Return whether
        there were any."""
        missed = [slot for slot in self.rows if slot < first_slot]
        for slot in missed:
            del self.rows[slot], self.quotas[slot]
            self.runs.pop(slot, None)
        self._packed = self._planned = None
        return bool(missed)

    def set_back(self, setback: Setback) -> None:
        """Mark it to be replanned. The loss of a node replaces other reasons: it waits for no report."""
        if self.setback is None or setback == "node_lost":
            self.setback = setback
            self._packed = None

    def end_setback(self) -> None:
        """Clear the mark of `set_back`."""
        self.setback = None
        self._packed = None

    def order_run(self, slot: int) -> None:
        self.runs[slot] = None
        self._packed = None

    def end_run(self, slot: int) -> None:
        self.runs.pop(slot, None)
        self._packed = None

    def lose_executor(self, row: int) -> None:
        """Note the restart or loss of a node's executor: the time that its runs had is unknown."""
        for slot in self.runs:
            if self.rows[slot] == row:
                self.runs[slot] = None
                self._packed = None

    def start_run(self, slot: int, samples_done: int) -> None:
        """Note the start of a slot's run at `samples_done`, which may be less than an earlier report."""
        self.job.samples_done = self.run_base_samples = self._unfinished(samples_done)
        self.run_slot = slot
        # A node that begins a run has ended the one before, with or without a report.
        for held in [held for held in self.runs if held < slot and self.rows[held] == self.rows[slot]]:
            del self.runs[held]
        self.runs[slot] = self.run_base_samples
        self._packed = None

    def report(self, slot: int, samples_done: int, complete: bool) -> None:
        self.job.samples_done = self._unfinished(samples_done)
        if complete:
            self.reported_slot = max(self.reported_slot, slot)
        self._packed = None

    def _unfinished(self, samples_done: int) -> int:
        """Limit progress: until an adapter is delivered, work is left, so that no job waits forever."""
        return min(samples_done, self.workload.work_samples - 1)

    def lose_slot(self, slot: int) -> None:
        """Expect nothing more of a slot's run."""
        self.quotas[slot] = 0
        self._packed = self._planned = None

    def hold(self, placement: Placement, demand: Demand, class_of_row: tuple[int, ...]) -> None:
        """Add a placement for the slots ahead, reserved with `demand`."""
        self.demand = demand
        self._packed = self._planned = None
        for slot, row in placement.node_slots():
            self.rows[slot] = row
            self.quotas[slot] = int(demand.samples[class_of_row[row]])
            self.priced.add((slot, row))

    def move(self, row_of: Mapping[int, int], demand: Demand) -> None:
        """Move the plan to other rows of its nodes. A node without a new row has left: nothing is planned on
        it.

        Args:
            demand: the present demand, by the new classes.
        """
        self.demand = demand
        self.rows = {slot: row_of.get(row, NODE_LEFT) for slot, row in self.rows.items()}
        self.runs = {slot: samples for slot, samples in self.runs.items() if self.rows[slot] != NODE_LEFT}
        self.priced = {(slot, row_of[row]) for slot, row in self.priced if row in row_of}
        self._packed = None

    def resident_rows(self) -> tuple[int, ...]:
        """Return the nodes that keep state of the job: for runs that are not over, and for its last complete
        slot, which the next run resumes."""
        slots = sorted(slot for slot in {*self.runs, self.reported_slot} if slot in self.rows)
        return tuple(dict.fromkeys(self.rows[slot] for slot in slots if self.rows[slot] != NODE_LEFT))

    def ahead(self, first_slot: int) -> Placement:
        """Return the node-slots held from `first_slot` on."""
        slots = sorted(slot for slot in self.rows if slot >= first_slot)
        return Placement(tuple(slots), tuple(self.rows[slot] for slot in slots))

    def forget(self, first_slot: int) -> None:
        """Remove the node-slots from `first_slot` on from the plan."""
        for slot in [slot for slot in self.rows if slot >= first_slot]:
            del self.rows[slot], self.quotas[slot]
        self.priced = {(slot, row) for slot, row in self.priced if slot >= first_slot}
        self._packed = self._planned = None

    def started(self, first_slot: int) -> bool:
        """Return whether a slot before `first_slot` was assigned to a node."""
        return any(slot < first_slot for slot in self.rows)

    def packed(self) -> bytes:
        """Return the state in msgpack, cached until the next change: few jobs change between snapshots."""
        if self._packed is None:
            demand = [part.tolist() if isinstance(part, np.ndarray) else part for part in self.demand]
            self._packed = pack([state_of(self), demand])
        return self._packed

    @classmethod
    def unpack(cls, packed: bytes, jobs: Mapping[str, Job]) -> Self:
        """Return the job with a packed state, with the live jobs by id."""
        state, demand = unpack(packed)
        arrays = [np.array(part) if isinstance(part, list) else part for part in demand]
        return from_state(cls, state, jobs, demand=Demand._make(arrays))
