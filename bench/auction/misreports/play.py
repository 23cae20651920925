"""A world played to the end, for one way of bidding."""

from collections.abc import Callable, Iterable
from copy import copy

from bench.auction.misreports.executors import TrueExecutors
from bench.auction.misreports.worlds import CELL, SLOT_S, Other, Task, World
from schemas.auction.evidence import evidence_of
from schemas.auction.terms import DeadlineTerms
from schemas.base import Event, Outcome
from schemas.clock import ClockTicked
from schemas.codec import Envelope
from schemas.decisions import JobAdmitted, JobCompleted, JobQuoted, JobRefunded, JobWithdrawn
from schemas.jobs import JobQuoteRequested, JobWithdrawalRequested
from schemas.lora_commands import SlotAssigned
from streams.cell.cell import Cell, LedgerEvent

_USERS = ("user", "another")
"""Names of the same user."""


class Play:
    """A world up to the user's arrival, and then what the user makes of it.

    Attributes:
        world: that is played.
        paid_micros: what the user has paid, less what came back.
        live: the user's jobs that are admitted and not over.
        returnable_micros: what the withdrawal of a job gives back that has not begun, by job.
        begun: the user's jobs that have had a slot.
        published: the slot by whose end the adapter of a job was published, by job.
    """

    def __init__(self, world: World) -> None:
        """Play a world until the user comes."""
        self.world = world
        self._cell = Cell(CELL)
        self._own: dict[str, Task] = {}
        self._tasks: dict[str, Task] = {}
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
        """The same, to go on from on its own."""
        other = copy(self)
        other._cell = Cell.unpack(self._snapshot)
        other._own, other._tasks = {}, dict(self._tasks)
        other._executors = self._executors.fork(other._tasks)
        other.live, other.begun = set(), set()
        other.returnable_micros, other.published = {}, {}
        return other

    def bid(self, job_id: str, bid_micros: int, said: Task, true: Task | None = None, name: int = 0) -> bool:
        """Bid; whether it has won.

        Args:
            said: what the bid says of the task.
            true: what is true of it; by default, of the work that is asked for, what is true of the user's.
            name: under which the user bids.
        """
        truth = self.world.task if true is None else true
        self._own[job_id] = self._tasks[job_id] = truth
        self._send(said.bid(job_id, max(bid_micros, 0), _USERS[name]))
        return job_id in self.live

    def lowest_winning_micros(self, said: Task) -> int | None:
        """What a bid would have to be now, by a quote; None where none wins."""
        submitted = said.bid("q", 0, _USERS[0])
        request = JobQuoteRequested(
            cell=CELL,
            quote_id="q",
            user=submitted.user,
            zone=submitted.zone,
            workload=submitted.workload,
            terms=DeadlineTerms(deadline_s=said.deadline_slot * SLOT_S),
        )
        quoted = next(outcome for outcome in self._send(request) if isinstance(outcome, JobQuoted))
        return evidence_of(quoted).lowest_winning_bid_micros

    def withdraw(self, job_id: str, name: int = 0) -> None:
        """Withdraw a job, if it may still be."""
        self._send(JobWithdrawalRequested(cell=CELL, job_id=job_id, user=_USERS[name]))

    def others_follow(self) -> None:
        """Those bid who come in the user's slot, after the user."""
        behind, self._others_behind = self._others_behind, ()
        self._others(behind)

    def wait(self, slots: int) -> None:
        """So many slots go by; at once, those bid who come after the user."""
        self.others_follow()
        for _ in range(slots):
            self._begin_slot()

    def finish(self) -> None:
        """The clock goes on until no job of the user is left."""
        last_slot = self.world.task.deadline_slot + 2 * self.world.horizon_slots + 40
        while self.live:
            if self._slot > last_slot:
                raise RuntimeError(f"jobs {sorted(self.live)} do not end")
            self._begin_slot()

    def utility_micros(self, jobs: Iterable[str]) -> int:
        """What the user has of it, if the adapters of all these jobs are wanted by the deadline."""
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
        """Keep the user's books."""
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
                # Reports of a slot's end come before the clock says that the next has begun.
                self.published[outcome.job_id] = self._slot
                self.live.discard(outcome.job_id)


Strategy = Callable[[Play], tuple[str, ...]]
"""What a user does; returns the jobs whose adapters together are what the user wants."""


def utility(play: Play, strategy: Strategy) -> int:
    """What a way of bidding brings the user, in micros, in a world that `play` has played so far."""
    going = play.fork()
    wanted = strategy(going)
    going.others_follow()
    going.finish()
    return going.utility_micros(wanted)
