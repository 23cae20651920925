"""The demo's market: a price, the machine's speed, bids for adapters, and an executor that is killed.

At the end all jobs are over, those of the killed node too, and the node trains again.
"""

import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from infra.demo.demo_cell import FirstRun, zone_at
from infra.demo.demo_environment import Record, Stage
from infra.figures.jobs import JobTimeline
from infra.text import counted, first_of, time_s_of
from infra.workloads.arrivals import Arrival
from infra.workloads.auction import BidDemands, BidDraw, draw_quotes
from infra.workloads.timed import TimedEvent
from schemas.auction.bids import BidTerms
from schemas.auction.evidence import JobReplanned, evidence_of
from schemas.cells import ThroughputRow, Zone
from schemas.changes import ZoneConfigured
from schemas.codec import Decision, Envelope
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, ZoneAccepted
from schemas.fleet import NodeOnline, RunFinished, RunStarted
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset, LoraHyperparameters, LoraWorkload
from schemas.lora_commands import SlotAssigned

_BARGAIN, _LONG, _LAST = "bargain", "long-haul", "after-the-crash"
_LONG_SLOTS = 3
_LAST_SLACK_SLOTS = 8
_MICROS_PER_S = 250_000
"""Bid per second of a slot: several times the price, for jobs that are to be admitted."""
_BARGAIN_MICROS = 1
_LEAD_S = 0.5
_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_DEMANDS = BidDemands(
    median_work_slots=1.5,
    longest_work_slots=2.0,
    # Long enough for the work of a killed node to be done later.
    slack=(4.0, 8.0),
    # High, and on every layer: the losses must fall visibly within few steps.
    learning_rates=(5e-3, 1e-2),
    target_modules=_MODULES,
)


@dataclass
class MarketScene:
    """Submits the bids of a workload, and kills an executor once."""

    stage: Stage
    arrivals: Sequence[Arrival]
    seed: int
    datasets: tuple[Dataset, ...]
    killed_node: str | None = None
    recovered: bool = False
    """Whether the node of the killed executor has come online and started a run since."""
    slipped: set[str] = field(default_factory=set)
    """Jobs that were planned again though the killed node had no part in their plans."""
    lost: set[str] = field(default_factory=set)
    """Jobs that were refunded though the killed node had no part in their plans."""
    _zone: Zone = field(init=False)
    """Present configuration of the zone."""
    _ids: set[str] = field(default_factory=set)
    _first: dict[str, str] = field(default_factory=dict)
    """Node of each job that measures a node's speed."""
    _slot_start_s: dict[str, float] = field(default_factory=dict)
    """Start of the slot of each node's first job."""
    _started_s: dict[str, float] = field(default_factory=dict)
    _finished: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Samples of each first job, and the time at which they were trained."""
    _accepted: bool = False
    """Whether the cell plans with the speeds of this machine."""
    _nodes: dict[str, set[str]] = field(default_factory=dict)
    """All nodes that each job was ever planned on."""
    _endangered: set[str] = field(default_factory=set)
    """Jobs that had work left on the node when it was killed."""
    _is_back: bool = False
    """Whether the executor has come online since the kill."""

    def __post_init__(self) -> None:
        self._zone = self.stage.zone("auction")

    @property
    def completed(self) -> list[JobCompleted]:
        """Decisions about its completed jobs."""
        return [job.completed for job in self._jobs if job.completed is not None]

    @property
    def saved(self) -> list[str]:
        """Jobs that were completed though the kill endangered them."""
        return sorted(self._endangered & {job.job_id for job in self.completed})

    @property
    def returned(self) -> bool:
        """Whether the killed executor's node is online again."""
        if self.killed_node is None or not self._is_back:
            return False
        return self.stage.board.nodes.by_id[self.killed_node].status == "up"

    @property
    def shortcomings(self) -> list[str]:
        found = []
        if self.lost:
            lost = first_of(sorted(self.lost), 2)
            found.append(f"refunded, and not because of the kill, see the lines above: {lost}")
        if self.killed_node is None:
            return [*found, "no executor was killed"]
        if not self.saved:
            found.append(f"no job that {self.killed_node} was to train was completed after the kill")
        if not self.recovered:
            found.append(f"{self.killed_node} has trained nothing since its executor was killed")
        return found

    @property
    def summary(self) -> str:
        states, saved = [job.state for job in self._jobs], counted(len(self.saved), "job")
        refunded = states.count("refunded")
        refunds = f" and {refunded} refunded" if refunded else ""
        return (
            f"{counted(len(states), 'bid')}: {states.count('completed')} adapters trained, "
            f"{states.count('rejected')} rejected{refunds}; "
            f"{self.killed_node} was killed, and {saved} planned on it completed all the same"
        )

    def play(self) -> Iterator[str]:
        quotes = draw_quotes(self.stage.cell, self.seed)
        for quote in quotes:
            self.stage.send(quote, "vendors")
        self.stage.progress.show("*** a bid of next to nothing: what would have won?")
        self._bid(_BARGAIN, self._rows()[0], 1, self._zone.horizon_slots, _BARGAIN_MICROS)
        while not self._over({_BARGAIN}):
            yield "the first decision"
        yield from self.stage.online("auction")
        yield from self._measure()
        demands = replace(_DEMANDS, datasets=self.datasets)
        draw = BidDraw(self.stage.cell, self._zone, quotes, self.seed, demands)
        bids = draw.jobs(self.arrivals, time.time() + _LEAD_S)
        yield from self._trade(deque(sorted(bids, key=lambda timed: timed.time_s)))

    def note(self, records: Sequence[Record]) -> None:
        self.stage.refuse_lost(records, list(self._first))
        for record in records:
            if isinstance(record, Envelope):
                self._note_event(record)
            else:
                self._note_decision(record)

    @property
    def _jobs(self) -> list[JobTimeline]:
        return [job for id, job in self.stage.board.jobs.by_id.items() if id in self._ids]

    def _over(self, ids: set[str]) -> bool:
        return ids <= {job.job_id for job in self._jobs if job.is_over}

    def _rows(self) -> list[ThroughputRow]:
        """Return a row of the throughput table for each type of GPU."""
        return list({row.gpu_type: row for row in reversed(self._zone.throughput)}.values())

    def _bid(
        self,
        job_id: str,
        row: ThroughputRow,
        slots: int,
        slack_slots: int,
        bid_micros: int | None = None,
        elsewhere: Sequence[ThroughputRow] = (),
    ) -> None:
        """Submit a job that takes `slots` on the row's type of GPU, with a deadline `slack_slots` later. It
        trains on that type alone, or on those of the rows `elsewhere` too."""
        slot_s = self.stage.cell.slot_s
        batches = max(int(slots * slot_s * row.samples_per_s / row.batch_size), 1)
        workload = LoraWorkload(
            work_samples=batches * row.batch_size,
            dataset=self.datasets[len(self._ids) % len(self.datasets)],
            hyperparameters=LoraHyperparameters(
                rank=row.rank,
                batch_size=row.batch_size,
                sequence_length=row.sequence_length,
                learning_rate=_DEMANDS.learning_rates[0],
                target_modules=_MODULES,
            ),
            speed_samples_per_s={each.gpu_type: each.samples_per_s for each in (row, *elsewhere)},
        )
        if bid_micros is None:
            bid_micros = round(_MICROS_PER_S * slot_s * slots)
        deadline_s = time.time() + (slots + slack_slots) * slot_s
        terms = BidTerms(bid_micros=bid_micros, deadline_s=deadline_s)
        self._ids.add(job_id)
        self.stage.submit(self._zone.id, job_id, workload, terms)

    def _measure(self) -> Iterator[str]:
        """Train a first job on each type of node, and configure the zone with the measured speeds."""
        stage = self.stage
        stage.progress.show("*** two first jobs, which also show how fast this machine is")
        for row in self._rows():
            node = next(node.id for node in self._zone.nodes if node.gpu_type == row.gpu_type)
            self._first[f"first-{row.gpu_type.lower()}"] = node
            self._bid(f"first-{row.gpu_type.lower()}", row, 1, self._zone.horizon_slots)
        while not (self._over(set(self._first)) and self._finished.keys() == self._first.keys()):
            yield "the first adapters"
        type_of = {node.id: node.gpu_type for node in self._zone.nodes}
        speeds = {}
        for job_id, node in self._first.items():
            samples, finished_s = self._finished[job_id]
            run = FirstRun(samples, self._slot_start_s[node], self._started_s[job_id], finished_s)
            speeds[type_of[node]] = run.sustained_samples_per_s(stage.cell.slot_s)
        self._zone = zone_at(self._zone, speeds)
        text = ", ".join(f"{speed:.0f} samples/s on {gpu_type}" for gpu_type, speed in speeds.items())
        stage.progress.show(f"*** zone {self._zone.id} plans with what this machine can keep: {text}")
        stage.send(ZoneConfigured(cell=stage.cell.cell, zone=self._zone), "operators")
        while not self._accepted:
            yield "the zone's new speeds"

    def _trade(self, waiting: deque[TimedEvent[JobSubmitted]]) -> Iterator[str]:
        """Submit each bid at its time and kill an executor meanwhile, until every job is over, those of the
        killed node too."""
        bids, slot_s = counted(len(waiting), "bid"), self.stage.cell.slot_s
        self.stage.progress.show(
            f"*** {bids} and a longer job, which a crash will meet; plans are made in slots of {slot_s:g} s"
        )
        row, *elsewhere = self._rows()
        self._bid(_LONG, row, _LONG_SLOTS, 2 * self._zone.horizon_slots, elsewhere=elsewhere)
        self._ids |= {timed.event.job_id for timed in waiting}
        while True:
            while waiting and waiting[0].time_s <= time.time():
                self.stage.send(waiting.popleft().event)
            if self.killed_node is None:
                self._kill_executor()
            elif self.returned and _LAST not in self._ids:
                type_of = {node.id: node.gpu_type for node in self._zone.nodes}
                row = next(row for row in self._rows() if row.gpu_type == type_of[self.killed_node])
                self._bid(_LAST, row, 1, _LAST_SLACK_SLOTS)
            left = len(self._ids) - sum(job.is_over for job in self._jobs)
            if not left and (self.killed_node is None or _LAST in self._ids):
                return
            if self.killed_node is not None and not self.returned:
                yield f"the killed executor of {self.killed_node}"
            else:
                yield counted(left, "job")

    def _kill_executor(self) -> None:
        """Kill the executor that trains the long job, once it has trained some of it."""
        job = next((job for job in self._jobs if job.job_id == _LONG), None)
        if job is None or not job.samples_done or not job.nodes or job.is_over:
            return
        (node, *_) = sorted(job.nodes)
        pid = self.stage.deployment.executors[self.stage.cell.cell, node].pid
        if pid is not None:
            self.stage.progress.show(f"*** the executor of {node} is killed while it trains {_LONG}")
            os.kill(pid, signal.SIGKILL)
            self.killed_node = node
            self._endangered = {
                job.job_id
                for job in self._jobs
                if not job.is_over and node in self._nodes.get(job.job_id, ())
            }

    def _note_event(self, record: Envelope) -> None:
        match record.event:
            case RunStarted(job_id=job_id) if job_id in self._first:
                self._started_s.setdefault(job_id, time_s_of(record.time) or time.time())
            case RunFinished(job_id=job_id) as run if job_id in self._first:
                self._finished[job_id] = run.samples_done, time_s_of(record.time) or time.time()
            case NodeOnline(node=node) if node == self.killed_node and not self._is_back:
                self._is_back = True
                self.stage.progress.show(f"*** the executor of {node} is back")
            # In the order of the ledger, this run started after the kill.
            case RunStarted(node=node) as run if (
                self._is_back and node == self.killed_node and not self.recovered
            ):
                self.recovered = True
                self.stage.progress.show(f"*** the executor of {node} trains {run.job_id}")

    def _note_decision(self, record: Decision) -> None:
        match record.outcome:
            case SlotAssigned() as slot if slot.node in self._first.values():
                self._slot_start_s.setdefault(slot.node, slot.slot_start_s)
            case ZoneAccepted(zone=zone) if zone == self._zone.id:
                self._accepted = True
            case JobAdmitted(job_id=job_id) as admitted:
                offer = evidence_of(admitted).offer
                if offer is not None and offer.plan is not None:
                    self._nodes[job_id] = {node for _, node in offer.plan.node_slots}
            case JobReplanned(job_id=job_id) as replanned if job_id in self._ids:
                if self._is_unrelated(job_id):
                    self.slipped.add(job_id)
                self._nodes.setdefault(job_id, set()).update(node for _, node in replanned.plan.node_slots)
            case JobRefunded(job_id=job_id) if job_id in self._ids and self._is_unrelated(job_id):
                self.lost.add(job_id)

    def _is_unrelated(self, job_id: str) -> bool:
        """Return whether the killed node has had no part in a job's plans."""
        return self.killed_node is None or self.killed_node not in self._nodes.get(job_id, ())
