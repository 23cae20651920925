"""Random small zones with their other users, and runs of them to the end for one user's strategy, with
executors that behave like real ones.

All properties of a world come from a seeded generator, so that it is the same on every machine. Deadlines are
ends of slots, because a plan promises no work before the end of a slot.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from schemas.auction.bids import BidTerms, DeadlineTerms, VendorQuoted
from schemas.auction.evidence import evidence_of
from schemas.base import HOURS_PER_DAY, Event, Outcome
from schemas.cells import CellConfigured, GpuType, Node, Tariff, ThroughputRow, Zone
from schemas.clock import ClockTicked
from schemas.codec import Envelope
from schemas.decisions import JobAdmitted, JobCompleted, JobQuoted, JobRefunded, JobWithdrawn
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted
from schemas.jobs import JobQuoteRequested, JobSubmitted, JobWithdrawalRequested
from schemas.kind import PolicySettings
from schemas.lora import Dataset, LoraHyperparameters, LoraWorkload
from schemas.lora_commands import MEMORY_TOLERANCE_GIB, RunOrder, SlotAssigned
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell

CELL, ZONE = "c", "z"
SLOT_S = 1_800.0
UNIT_MICROS = 1_000_000
"""The median value of a node-slot of compute."""
BASE_GIB = 2.0
NODE_GIB = {"large": 26.0, "small": 14.0}
NODE_SAMPLES = {"large": 1_800, "small": 900}
"""Samples per slot of a full node, by GPU type."""
RANK, SEQUENCE_LENGTH = 8, 64
OTHERS_BATCH = 2
"""Batch size of other users' tasks, which no row covers: their declarations are true."""
MOST_OTHERS = 36
LOADS = (0.3, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class DeclaredTask:
    """Properties of a task that a bid may declare; for the user's own task, the true ones."""

    work_samples: int
    deadline_slot: int
    """Slot that begins with the deadline."""
    memory_gib: float
    speed_samples_per_s: Mapping[str, float]
    """Speeds by GPU type."""
    dataset_samples: int
    needs_preprocessing: bool
    batch_size: int

    def bid(self, job_id: str, bid_micros: int, user: str) -> JobSubmitted:
        """Return a bid with these properties."""
        return JobSubmitted(
            cell=CELL,
            job_id=job_id,
            user=user,
            zone=ZONE,
            workload=LoraWorkload(
                work_samples=self.work_samples,
                dataset=Dataset(path="d.jsonl", samples=self.dataset_samples),
                hyperparameters=LoraHyperparameters(
                    rank=RANK, batch_size=self.batch_size, sequence_length=SEQUENCE_LENGTH
                ),
                memory_gib=self.memory_gib,
                speed_samples_per_s=dict(self.speed_samples_per_s),
                needs_preprocessing=self.needs_preprocessing,
            ),
            terms=BidTerms(bid_micros=bid_micros, deadline_s=self.deadline_slot * SLOT_S),
        )


@dataclass(frozen=True)
class Other:
    """A true bid of another user."""

    job_id: str
    task: DeclaredTask
    bid_micros: int


@dataclass(frozen=True)
class World:
    """A zone and all its events except the user's actions."""

    configuration: CellConfigured
    quotes: tuple[VendorQuoted, ...]
    others: Mapping[int, tuple[Other, ...]]
    """Bids by slot; in the user's own slot, those before the user."""
    others_behind: tuple[Other, ...]
    """Bids in the user's own slot, after the user."""
    slot: int
    """Slot of the user's arrival."""
    task: DeclaredTask
    value_micros: int
    """Value of an adapter by the deadline."""
    has_row: bool
    """Whether the zone has measured the user's task."""

    @property
    def horizon_slots(self) -> int:
        """Horizon of the zone."""
        return self.configuration.zones[0].horizon_slots


def draw_world(rng: random.Random, policy: PolicySettings) -> World:
    """Draw one to four nodes of one or two types, six to 24 slots, and up to `MOST_OTHERS` other bids."""
    types = rng.choice((("large",), ("large",), ("large", "small")))
    nodes = rng.choice((1, 2, 2, 3, 4))
    horizon_slots = rng.randint(6, 24)
    slot = rng.randint(0, 3)
    task, value_micros = _draw_task(rng, types, slot, horizon_slots, rng.choice((1, 4, 16)))
    if rng.random() < 0.25:
        task = replace(task, deadline_slot=slot + 1 + horizon_slots + rng.randint(1, 4))
    has_row = rng.random() < 0.5
    rows = tuple(_row(rng, task, gpu_type) for gpu_type in types) if has_row else ()
    vendors = tuple(f"v{number}" for number in range(rng.randint(1, 3)))
    others = _draw_others(rng, types, nodes, slot, horizon_slots)
    own = others.get(slot, ())
    before = rng.randint(0, len(own))
    return World(
        configuration=CellConfigured(
            cell=CELL,
            epoch_s=0.0,
            slot_s=SLOT_S,
            node_timeout_s=SLOT_S,
            tariffs=(_tariff(rng, "day"), _tariff(rng, "night")),
            zones=(
                Zone(
                    id=ZONE,
                    base_model="base",
                    base_model_memory_gib=BASE_GIB,
                    horizon_slots=horizon_slots,
                    gpu_types=tuple(
                        GpuType(
                            name=name,
                            samples_per_s=NODE_SAMPLES[name] / SLOT_S,
                            memory_gib=NODE_GIB[name],
                            power_kw=NODE_SAMPLES[name] / 1_800,
                        )
                        for name in types
                    ),
                    nodes=tuple(
                        Node(id=f"n{number}", gpu_type=rng.choice(types), tariff=rng.choice(("day", "night")))
                        for number in range(nodes)
                    ),
                    throughput=rows,
                    policy=policy,
                ),
            ),
            vendors=vendors,
        ),
        quotes=tuple(_quote(rng, vendor) for vendor in vendors),
        others={**others, slot: own[:before]},
        others_behind=own[before:],
        slot=slot,
        task=task,
        value_micros=value_micros,
        has_row=has_row,
    )


def _draw_task(
    rng: random.Random, types: tuple[str, ...], slot: int, horizon_slots: int, batch_size: int
) -> tuple[DeclaredTask, int]:
    """Draw the task of a user who arrives in a slot, and its value in micros."""
    share = rng.choice((0.1, 0.25, 0.4, 0.5, 0.7, 1.0)) * rng.uniform(0.8, 1.0)
    per_slot = {
        name: max(math.floor(share * NODE_SAMPLES[name] * rng.uniform(0.7, 1.0)), 1) for name in types
    }
    node_slots = rng.choice((1, 1, 2, 3, 5)) * rng.uniform(0.6, 1.0)
    work = max(math.ceil(node_slots * max(per_slot.values())), 1)
    needed = math.ceil(work / min(per_slot.values()))
    deadline = slot + 1 + needed + rng.randint(0, max(horizon_slots - needed, 0))
    density = math.exp(rng.gauss(0.0, 1.0))
    compute = max(work / NODE_SAMPLES[name] for name in types)
    prepared = rng.random() < 0.3
    task = DeclaredTask(
        work_samples=work,
        deadline_slot=deadline,
        memory_gib=round(rng.choice((0.5, 1.0, 3.0, 6.0, 11.0)) * rng.uniform(0.7, 1.0), 3),
        # Half a sample more, so that rounding does not remove one.
        speed_samples_per_s={name: (samples + 0.5) / SLOT_S for name, samples in per_slot.items()},
        dataset_samples=rng.randint(50, 2_000),
        needs_preprocessing=prepared,
        batch_size=batch_size,
    )
    return task, max(round(UNIT_MICROS * density * max(compute, 0.05) * (1.3 if prepared else 1.0)), 1)


def _draw_others(
    rng: random.Random, types: tuple[str, ...], nodes: int, slot: int, horizon_slots: int
) -> dict[int, tuple[Other, ...]]:
    """Draw other bids, by slot: most before the user or in the same slot, some later."""
    count = min(round(rng.choice(LOADS) * rng.uniform(0.5, 1.0) * nodes * horizon_slots / 2), MOST_OTHERS)
    drawn: dict[int, list[Other]] = {}
    for number in range(count):
        at = rng.randint(0, slot) if rng.random() < 0.7 else slot + rng.randint(0, 4)
        task, value_micros = _draw_task(rng, types, at, horizon_slots, OTHERS_BATCH)
        drawn.setdefault(at, []).append(Other(f"other{number}", task, value_micros))
    return {at: tuple(bids) for at, bids in drawn.items()}


def _row(rng: random.Random, task: DeclaredTask, gpu_type: str) -> ThroughputRow:
    """Draw a measurement of the task's shape, or of one that is no smaller."""
    is_exact = rng.random() < 0.5
    return ThroughputRow(
        gpu_type=gpu_type,
        rank=RANK if is_exact else 2 * RANK,
        batch_size=task.batch_size,
        sequence_length=SEQUENCE_LENGTH,
        samples_per_s=task.speed_samples_per_s[gpu_type] * (1.0 if is_exact else rng.uniform(0.85, 1.0)),
        memory_gib=task.memory_gib * (1.0 if is_exact else rng.uniform(1.0, 1.1)),
    )


def _tariff(rng: random.Random, name: str) -> Tariff:
    prices = tuple(round(UNIT_MICROS * rng.uniform(0.0, 0.6)) for _ in range(HOURS_PER_DAY))
    return Tariff(name=name, micros_per_kwh=prices)


def _quote(rng: random.Random, vendor: str) -> VendorQuoted:
    return VendorQuoted(
        cell=CELL,
        vendor=vendor,
        fixed_price_micros=round(UNIT_MICROS * rng.uniform(0.0, 0.1)),
        price_per_thousand_samples_micros=round(UNIT_MICROS * rng.uniform(0.0, 0.4)),
        fixed_delay_s=SLOT_S * rng.choice((0, 0, 1, 2)),
        delay_per_thousand_samples_s=SLOT_S * rng.choice((0.0, 0.5, 1.0)),
    )


_USERS = ("user", "another")
"""Names of the same user."""


class Play:
    """State of a world, run to the user's arrival and then on with the user's actions.

    Attributes:
        world: the world.
        paid_micros: the user's payments, less refunds.
        live: the user's jobs that are admitted and not over.
        begun: the user's jobs that have had a slot.
        returnable_micros: refund for the withdrawal of a job that has not begun, by job.
        published: slot at whose end the adapter of a job was published, by job.
    """

    def __init__(self, world: World) -> None:
        """Run a world until the user arrives."""
        self.world = world
        self._cell = Cell(CELL)
        self._own: set[str] = set()
        self._tasks: dict[str, DeclaredTask] = {}
        nodes = world.configuration.zones[0].nodes
        self._executors = TrueExecutors(self._tasks, {node.id: node.gpu_type for node in nodes})
        self._slot = -1
        self.paid_micros = 0
        self.live: set[str] = set()
        self.begun: set[str] = set()
        self.returnable_micros: dict[str, int] = {}
        self.published: dict[str, int] = {}
        self._others_behind = world.others_behind
        self._send(world.configuration)
        for quote in world.quotes:
            self._send(quote)
        while self._slot < world.slot:
            self._begin_slot()
        self._snapshot = self._cell.packed()

    def fork(self) -> "Play":
        """Return an independent copy at the user's arrival."""
        other = copy(self)
        other._cell = Cell.unpack(self._snapshot)
        other._own, other._tasks = set(), dict(self._tasks)
        other._executors = self._executors.fork(other._tasks)
        other.live, other.begun = set(), set()
        other.returnable_micros, other.published = {}, {}
        return other

    def bid(self, job_id: str, bid_micros: int, declared: DeclaredTask, name: int = 0) -> bool:
        """Bid for the user's task, and return whether the bid has won.

        Args:
            declared: the task that the bid declares.
            name: index of the user's name.
        """
        self._own.add(job_id)
        self._tasks[job_id] = self.world.task
        self._send(declared.bid(job_id, max(bid_micros, 0), _USERS[name]))
        return job_id in self.live

    def lowest_winning_micros(self, declared: DeclaredTask) -> int | None:
        """Return the lowest winning bid, by a quote; None if no bid wins."""
        submitted = declared.bid("q", 0, _USERS[0])
        request = JobQuoteRequested(
            cell=CELL,
            quote_id="q",
            user=submitted.user,
            zone=submitted.zone,
            workload=submitted.workload,
            terms=DeadlineTerms(deadline_s=declared.deadline_slot * SLOT_S),
        )
        quoted = next(outcome for outcome in self._send(request) if isinstance(outcome, JobQuoted))
        return evidence_of(quoted).lowest_winning_bid_micros

    def withdraw(self, job_id: str, name: int = 0) -> None:
        """Withdraw a job, if that is possible."""
        self._send(JobWithdrawalRequested(cell=CELL, job_id=job_id, user=_USERS[name]))

    def others_follow(self) -> None:
        """Send the bids of others that follow the user's in its slot."""
        behind, self._others_behind = self._others_behind, ()
        self._others(behind)

    def wait(self, slots: int) -> None:
        """Advance by some slots, after the bids that follow the user's."""
        self.others_follow()
        for _ in range(slots):
            self._begin_slot()

    def finish(self) -> None:
        """Advance until no job of the user is left."""
        last_slot = self.world.task.deadline_slot + 2 * self.world.horizon_slots + 40
        while self.live:
            if self._slot > last_slot:
                raise RuntimeError(f"jobs {sorted(self.live)} do not end")
            self._begin_slot()

    def utility_micros(self, jobs: Iterable[str]) -> int:
        """Return the user's utility, if the adapters of all these jobs are needed by the deadline."""
        by = self.world.task.deadline_slot
        is_served = all(self.published.get(job_id, by) < by for job_id in jobs)
        return self.world.value_micros * is_served - self.paid_micros

    def _begin_slot(self) -> None:
        for report in self._executors.end():
            self._send(report)
        self._slot += 1
        for outcome in self._send(ClockTicked(cell=CELL, time_s=self._slot * SLOT_S)):
            if isinstance(outcome, SlotAssigned):
                self.begun |= self._own & {run.job_id for run in outcome.runs}
                for started in self._executors.begin(outcome):
                    self._send(started)
        self._others(self.world.others.get(self._slot, ()))

    def _others(self, others: Iterable[Other]) -> None:
        for other in others:
            self._tasks[other.job_id] = other.task
            self._send(other.task.bid(other.job_id, other.bid_micros, other.job_id))

    def _send(self, event: Event) -> list[Outcome]:
        offset = self._cell.offset + 1
        decisions = self._cell.handle(LedgerEvent(offset, Envelope(f"e{offset}", "bench", "", event)))
        outcomes = [decision.outcome for decision in decisions]
        for outcome in outcomes:
            self._account(outcome)
        return outcomes

    def _account(self, outcome: Outcome) -> None:
        """Update the user's accounts."""
        if getattr(outcome, "job_id", None) not in self._own:
            return
        match outcome:
            case JobAdmitted():
                offer = evidence_of(outcome).offer
                assert offer is not None
                assert offer.price is not None
                self.returnable_micros[outcome.job_id] = offer.price.operational_micros
                self.paid_micros += outcome.payment_micros
                self.live.add(outcome.job_id)
            case JobWithdrawn():
                self.paid_micros -= outcome.returned_micros
                self.live.discard(outcome.job_id)
            case JobRefunded():
                self.paid_micros -= outcome.refund_micros
                self.live.discard(outcome.job_id)
            case JobCompleted():
                # Reports of a slot's end precede the tick of the next slot.
                self.published[outcome.job_id] = self._slot
                self.live.discard(outcome.job_id)


Strategy = Callable[[Play], tuple[str, ...]]
"""Actions of a user; returns the jobs whose adapters the user needs."""


def utility(play: Play, strategy: Strategy) -> int:
    """Return the utility of a strategy, in micros, from the present state of `play`."""
    going = play.fork()
    needed_jobs = strategy(going)
    going.others_follow()
    going.finish()
    return going.utility_micros(needed_jobs)


class TrueExecutors:
    """The nodes of a zone, with one store of checkpoints. A task's true needs end a run, not its bid.

    A run trains whole batches until its quota is reached, or as far as the task's true speed allows in the
    slot. It ends with the slot, since other runs may have used the node before it.
    """

    def __init__(self, tasks: Mapping[str, DeclaredTask], type_of: Mapping[str, str]) -> None:
        """Create executors of nodes by GPU type.

        Args:
            tasks: the true task of each job.
        """
        self._tasks = tasks
        self._type_of = type_of
        self._done: dict[str, int] = {}
        self._ends: list[RunReport] = []

    def fork(self, tasks: Mapping[str, DeclaredTask]) -> "TrueExecutors":
        """Return a copy with the same runs, which proceeds independently."""
        other = TrueExecutors(tasks, self._type_of)
        other._done, other._ends = dict(self._done), list(self._ends)
        return other

    def begin(self, command: SlotAssigned) -> Iterator[RunStarted]:
        """Begin the runs of a node, and prepare their ends for `end`."""
        for order in command.runs:
            task, place = self._tasks[order.job_id], _place(command, order)
            base = self._done.get(order.job_id, 0)
            self._ends.append(self._end(command, order, base))
            yield RunStarted(**place, samples_done=base, dataset_samples=task.dataset_samples)

    def end(self) -> Iterator[RunReport]:
        """Yield the ends of all runs that were begun."""
        ends, self._ends = self._ends, []
        yield from ends

    def _end(self, command: SlotAssigned, order: RunOrder, base: int) -> RunReport:
        task, place = self._tasks[order.job_id], _place(command, order)
        limit_gib = order.memory_limit_gib
        if limit_gib is not None and task.memory_gib > limit_gib + MEMORY_TOLERANCE_GIB:
            return RunFailed(
                **place, samples_done=base, error="memory", permanent=True, memory_gib=task.memory_gib
            )
        speed = task.speed_samples_per_s[self._type_of[command.node]]
        within = math.floor(speed * SLOT_S)
        batch = order.hyperparameters.batch_size
        goal = -(-(base + order.quota_samples) // batch) * batch - base
        reached = goal if within >= order.quota_samples else within
        done = min(base + reached, order.work_samples)
        self._done[order.job_id] = done
        if done == order.work_samples:
            return RunFinished(
                **place,
                samples_done=done,
                loss=0.0,
                adapter_path=f"{CELL}/{order.job_id}",
                adapter_digest="0" * 64,
            )
        memory_gib = None if limit_gib is None else task.memory_gib
        node_s = min((done - base) / speed, SLOT_S)
        return RunProgressed(
            **place, samples_done=done, loss=0.0, node_s=node_s, memory_gib=memory_gib, complete=True
        )


def _place(command: SlotAssigned, order: RunOrder) -> dict[str, Any]:
    return {"cell": CELL, "node": command.node, "run_id": order.run_id, "job_id": order.job_id}
