"""An auction zone's data about an admitted job, from its admission to its end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np

from schemas.auction.bids import Task
from schemas.lora import LoraWorkload
from solvers.auction.market.demand import Demand
from solvers.auction.market.market import Placement
from solvers.auction.mechanism.prices import Counted
from streams.cell.jobs import Job
from streams.cell.packing import pack, unpack

Setback = Literal["node_lost", "node_leaving", "behind_plan", "run_failed"]
"""Why a job's rest is planned again, at the provider's cost."""

NODE_LEFT = -1
"""In place of the row of a node that is not of the zone any more, in slots that are over."""


def run_id_of(slot: int, job_id: str) -> str:
    """What the run of a job's part of a slot is called."""
    return f"{slot}/{job_id}"


def slot_of_run(run_id: str, job_id: str) -> int | None:
    """The slot of a job's run; None where the auction gives no run of this job such an id."""
    slot, _, job = run_id.partition("/")
    is_number = slot.isascii() and slot.isdecimal() and slot == str(int(slot))
    return int(slot) if is_number and job == job_id else None


ZONE_BYTES = 512
"""What the zone keeps of a job takes in a snapshot at most, besides its plan: its id, and numbers."""
_HELD_NODE_SLOT_BYTES = 48
"""(slot, row), (slot, quota), and once its run is ordered (slot, samples), packed, of each node-slot of a
plan."""
_PRICED_BYTES = 13
"""(slot, row), packed, of each node-slot whose prices a job has raised."""
NODE_SLOT_BYTES = _HELD_NODE_SLOT_BYTES + _PRICED_BYTES
"""What each node-slot of a new plan adds to a job at most."""


def planned_bytes(placement: Placement) -> int:
    """What the zone keeps of a job with this plan takes in a snapshot, at most."""
    return ZONE_BYTES + NODE_SLOT_BYTES * len(placement.slots)


@dataclass
class PlannedJob:
    """An admitted job that is not over, and its plan."""

    job: Job
    workload: LoraWorkload
    """Of the job."""
    bid_micros: int
    payment_micros: int
    refundable_micros: int
    """The part of the payment that is for operation: a withdrawal gives back no more, whatever the node-slots
    that it was moved to since would have cost."""
    density_micros: float
    """b-bar_il of the award, for the prices of node-slots added later."""
    counted: Counted
    """What its bid added to the certificate, which a withdrawal takes back."""
    welfare_micros: int
    """What its plan was worth when it was admitted, which a withdrawal takes from the planned welfare."""
    ready_slot: int
    """First slot in which it may train: its vendor has delivered by then."""
    last_slot: int
    """Last slot that ends by its deadline."""
    demand: Demand
    """What the node-slots ahead were reserved with."""
    rows: dict[int, int] = field(default_factory=dict)
    """Node row by slot, past slots too (x_ikt = 1); see `NODE_LEFT`."""
    quotas: dict[int, int] = field(default_factory=dict)
    """Samples planned by slot."""
    priced: set[tuple[int, int]] = field(default_factory=set)
    """(slot, row) of the node-slots ahead whose prices it has raised, given up since or not."""
    reported_slot: int = -1
    """The last slot that was reported complete."""
    run_slot: int = -1
    """The last slot whose run was reported to have started."""
    run_base_samples: int = 0
    """What was done when it did."""
    lacking_samples: int = 0
    """What its runs trained less than its user's word promises for the time that they had, as far as it was
    not made up for, and since the last new plan."""
    runs: dict[int, int | None] = field(default_factory=dict)
    """The runs that were ordered and whose end was not reported, by slot: a node may hold them still. What
    was done when the run began; None where no start is known, or the executor was lost since."""
    setback: Setback | None = None
    """Why it is due to be planned again, as soon as its turn comes."""
    _packed: bytes | None = None
    """See `packed`; None after a change."""
    _planned: tuple[int, int] | None = None
    """A slot, and what is planned after it; None after a change of the plan. Asked for with every report."""

    @property
    def job_id(self) -> str:
        """Of the job."""
        return self.job.job_id

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
        if self.quotas.get(present_slot):
            return "running"
        return "paused" if self.started(present_slot) else "planned"

    @property
    def state_bytes(self) -> int:
        """What the zone keeps of it takes in a snapshot, at most."""
        return ZONE_BYTES + _HELD_NODE_SLOT_BYTES * len(self.rows) + _PRICED_BYTES * len(self.priced)

    @property
    def remaining_samples(self) -> int:
        """Work not yet reported done."""
        return max(self.workload.work_samples - self.job.samples_done, 0)

    def planned_after(self, slot: int) -> int:
        """Samples planned in the slots after this one."""
        if self._planned is None or self._planned[0] != slot:
            self._planned = slot, sum(quota for ahead, quota in self.quotas.items() if ahead > slot)
        return self._planned[1]

    def owe(self, lacking_samples: int) -> None:
        """A run has trained so much less than promised, or more if negative."""
        self.lacking_samples = max(self.lacking_samples + lacking_samples, 0)
        self._packed = None

    def set_back(self, setback: Setback) -> None:
        """It is due to be planned again. The loss of a node is no reason to wait for its report."""
        if self.setback is None or setback == "node_lost":
            self.setback = setback
            self._packed = None

    def end_setback(self) -> None:
        """It has been planned again, or its turn has come."""
        self.setback = None
        self._packed = None

    def order_run(self, slot: int) -> None:
        """A node is told to train this slot's part."""
        self.runs[slot] = None
        self._packed = None

    def end_run(self, slot: int) -> None:
        """No node holds this slot's run any more."""
        self.runs.pop(slot, None)
        self._packed = None

    def lose_executor(self, row: int) -> None:
        """A node's executor has begun anew, or is gone: what its runs have had of the node is not known."""
        for slot in self.runs:
            if self.rows[slot] == row:
                self.runs[slot] = None
                self._packed = None

    def start_run(self, slot: int, samples_done: int) -> None:
        """A run of this slot has begun at `samples_done`, which may be less than what was reported before."""
        self.job.samples_done = self.run_base_samples = self._unfinished(samples_done)
        self.run_slot = slot
        # A node that begins a run has ended the one before, whether it said so or not.
        for held in [held for held in self.runs if held < slot and self.rows[held] == self.rows[slot]]:
            del self.runs[held]
        self.runs[slot] = self.run_base_samples
        self._packed = None

    def report(self, slot: int, samples_done: int, complete: bool) -> None:
        """A run of this slot has come this far."""
        self.job.samples_done = self._unfinished(samples_done)
        if complete:
            self.reported_slot = max(self.reported_slot, slot)
        self._packed = None

    def _unfinished(self, samples_done: int) -> int:
        """Until an adapter is delivered, work is left, so that no job waits forever."""
        return min(samples_done, self.workload.work_samples - 1)

    def lose_slot(self, slot: int) -> None:
        """Nothing more is to be expected of this slot's run."""
        self.quotas[slot] = 0
        self._packed = self._planned = None

    def hold(self, placement: Placement, demand: Demand, class_of_row: tuple[int, ...]) -> None:
        """Hold a placement for the slots ahead, reserved with `demand`."""
        self.demand = demand
        self._packed = self._planned = None
        for slot, row in placement.node_slots():
            self.rows[slot] = row
            self.quotas[slot] = int(demand.samples[class_of_row[row]])
            self.priced.add((slot, row))

    def move(self, row_of: Mapping[int, int], demand: Demand) -> None:
        """Follow nodes to other rows; what is not in `row_of` has left, and nothing is planned on it.

        Args:
            demand: the present one, by the new classes.
        """
        self.demand = demand
        self.rows = {slot: row_of.get(row, NODE_LEFT) for slot, row in self.rows.items()}
        self.runs = {slot: samples for slot, samples in self.runs.items() if self.rows[slot] != NODE_LEFT}
        self.priced = {(slot, row_of[row]) for slot, row in self.priced if row in row_of}
        self._packed = None

    def resident_rows(self) -> tuple[int, ...]:
        """The nodes that keep something of the job: its runs that are not over, and the last part that was
        reported, for the next."""
        slots = sorted(slot for slot in {*self.runs, self.reported_slot} if slot in self.rows)
        return tuple(dict.fromkeys(self.rows[slot] for slot in slots if self.rows[slot] != NODE_LEFT))

    def ahead(self, first_slot: int) -> Placement:
        """The node-slots held from `first_slot` on."""
        slots = sorted(slot for slot in self.rows if slot >= first_slot)
        return Placement(tuple(slots), tuple(self.rows[slot] for slot in slots))

    def forget(self, first_slot: int) -> None:
        """Drop the node-slots from `first_slot` on from the plan."""
        for slot in [slot for slot in self.rows if slot >= first_slot]:
            del self.rows[slot], self.quotas[slot]
        self.priced = {(slot, row) for slot, row in self.priced if slot >= first_slot}
        self._packed = self._planned = None

    def started(self, first_slot: int) -> bool:
        """Whether a slot before `first_slot` was assigned to a node."""
        return any(slot < first_slot for slot in self.rows)

    def packed(self) -> bytes:
        """Everything in msgpack, kept until the next change: most jobs stay the same between snapshots."""
        if self._packed is None:
            self._packed = pack(
                {
                    "plain": [getattr(self, name) for name in _PLAIN_FIELDS],
                    "counted": list(self.counted),
                    "job_id": self.job_id,
                    "rows": list(self.rows.items()),
                    "quotas": list(self.quotas.items()),
                    "runs": list(self.runs.items()),
                    "priced": sorted(self.priced),
                    "demand": [
                        self.demand.work_samples,
                        self.demand.samples.tolist(),
                        self.demand.compute_share.tolist(),
                        self.demand.memory_gib,
                        self.demand.memory_share.tolist(),
                    ],
                }
            )
        return self._packed

    @classmethod
    def unpack(cls, packed: bytes, jobs: Mapping[str, Job]) -> Self:
        """What `packed` came from, of one of these jobs."""
        state = unpack(packed)
        job = jobs[state["job_id"]]
        work_samples, samples, compute_share, memory_gib, memory_share = state["demand"]
        return cls(
            **dict(zip(_PLAIN_FIELDS, state["plain"], strict=True)),
            counted=Counted(*state["counted"]),
            job=job,
            workload=Task.of(job).workload,
            rows=dict(state["rows"]),
            quotas=dict(state["quotas"]),
            runs=dict(state["runs"]),
            priced={(slot, row) for slot, row in state["priced"]},
            demand=Demand(
                work_samples=work_samples,
                samples=np.array(samples, np.int64),
                compute_share=np.array(compute_share),
                memory_gib=memory_gib,
                memory_share=np.array(memory_share),
            ),
        )


_PLAIN_FIELDS = (
    "bid_micros",
    "payment_micros",
    "refundable_micros",
    "density_micros",
    "welfare_micros",
    "ready_slot",
    "last_slot",
    "reported_slot",
    "run_slot",
    "run_base_samples",
    "lacking_samples",
    "setback",
)
