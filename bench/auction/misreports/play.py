"""Runs of a world to its end for one strategy, with executors that behave like real ones."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from typing import Any

from bench.auction.misreports.worlds import CELL, SLOT_S, DeclaredTask, Other, World
from schemas.auction.bids import DeadlineTerms
from schemas.auction.evidence import evidence_of
from schemas.base import Event, Outcome
from schemas.clock import ClockTicked
from schemas.codec import Envelope
from schemas.decisions import JobAdmitted, JobCompleted, JobQuoted, JobRefunded, JobWithdrawn
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted
from schemas.jobs import JobQuoteRequested, JobWithdrawalRequested
from schemas.lora_commands import MEMORY_TOLERANCE_GIB, RunOrder, SlotAssigned
from streams.cell.cell import Cell, LedgerEvent

_USERS = ("user", "another")
"""Names of the same user."""


class Play:
    """A world up to the user's arrival, and its continuation by the user's actions.

    Attributes:
        world: the world.
        paid_micros: the user's payments, less refunds.
        live: the user's jobs that are admitted and not over.
        returnable_micros: refund for the withdrawal of a job that has not begun, by job.
        begun: the user's jobs that have had a slot.
        published: the slot by whose end the adapter of a job was published, by job.
    """

    def __init__(self, world: World) -> None:
        """Run a world until the user arrives."""
        self.world = world
        self._cell = Cell(CELL)
        self._own: dict[str, DeclaredTask] = {}
        self._tasks: dict[str, DeclaredTask] = {}
        nodes = world.configuration.zones[0].nodes
        self._executors = TrueExecutors(self._tasks, {node.id: node.gpu_type for node in nodes})
        self._slot = -1
        self.paid_micros = 0
        self.live: set[str] = set()
        self.returnable_micros: dict[str, int] = {}
        self.begun: set[str] = set()
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
        other._own, other._tasks = {}, dict(self._tasks)
        other._executors = self._executors.fork(other._tasks)
        other.live, other.begun = set(), set()
        other.returnable_micros, other.published = {}, {}
        return other

    def bid(
        self,
        job_id: str,
        bid_micros: int,
        declared: DeclaredTask,
        true: DeclaredTask | None = None,
        name: int = 0,
    ) -> bool:
        """Bid, and return whether the bid has won.

        Args:
            declared: the task that the bid declares.
            true: the true task; by default the user's.
            name: index of the user's name.
        """
        truth = self.world.task if true is None else true
        self._own[job_id] = self._tasks[job_id] = truth
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
                self.begun |= self._own.keys() & {run.job_id for run in outcome.runs}
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
                self.paid_micros += outcome.payment_micros
                offer = evidence_of(outcome).offer
                assert offer is not None
                assert offer.price is not None
                self.returnable_micros[outcome.job_id] = offer.price.operational_micros
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
"""Actions of a user; returns the jobs whose adapters together are what the user needs."""


def utility(play: Play, strategy: Strategy) -> int:
    """Return the utility of a strategy, in micros, from the present state of `play`."""
    going = play.fork()
    needed_jobs = strategy(going)
    going.others_follow()
    going.finish()
    return going.utility_micros(needed_jobs)


class TrueExecutors:
    """The nodes of a zone, with one store of checkpoints. The true needs of a run determine its end, not its
    bid.

    A run trains batch by batch to the first one at or after its quota, or as far as the task's true speed
    allows within the slot; it ends with the slot, since others may have had the node before it.
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
