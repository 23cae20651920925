"""State of one cell, folded from its log: the basis of displays, summaries and comparisons of simulations."""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from infra.figures.jobs import Jobs, JobTimeline, ReportedRun
from infra.figures.loans import CellLoans
from infra.figures.messages import Messages
from infra.figures.nodes import Nodes
from infra.figures.zone import ZoneFigures, figures_of
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from schemas.codec import Decision
from schemas.decisions import EventFaulted, ZoneAccepted
from schemas.fleet import RunReport
from schemas.solves import SolveFinished
from streams.cell.ledger_event import LedgerEvent

_RUNS_KEPT = 1_000
"""Number of the latest runs of a job that are kept where jobs leave the figures."""


@dataclass
class Solves:
    """Counts of the answers of solvers."""

    answers: int = 0
    without_solution: int = 0
    """Answers without a solution, where the time limit ended the search."""
    seconds: float = 0.0
    """Sum of the solvers' times, by their own clocks."""

    def count(self, answer: SolveFinished) -> None:
        self.answers += 1
        self.without_solution += answer.solution is None or answer.solution.is_empty
        self.seconds += answer.solve_s


@dataclass
class Board:
    """Folds a cell's ledger events and decisions, each in their order.

    The two topics have no common order, so a decision waits until its event is folded.
    """

    cell: str
    jobs: Jobs = field(default_factory=Jobs)
    nodes: Nodes = field(default_factory=Nodes)
    loans: CellLoans = field(default_factory=CellLoans)
    messages: Messages = field(default_factory=Messages)
    solves: Solves = field(default_factory=Solves)
    zones: dict[str, ZoneFigures[Any]] = field(default_factory=dict)
    """Figures of the zones whose policies have any, by zone."""
    events: int = 0
    faults: int = 0
    """Events that changed nothing because folding them raised."""
    last_fault: EventFaulted | None = None
    omissions: int = 0
    """Parts of records that a view could not fold, and that are not shown."""
    last_omission: tuple[str, str, str] | None = None
    """Types of the record and of the exception that was raised, and what the exception states."""
    first_s: float | None = None
    time_s: float | None = None
    """First and last time of the cell's clock."""
    left_busy_s: float = 0.0
    """Time of nodes at full speed (s) that the samples of jobs took that are not kept any more."""
    _configuration: CellConfigured | None = None
    """Present configuration."""
    _folded: int = -1
    """Ledger offset of the last folded event."""
    _place: tuple[int, int] = (-1, -1)
    """Place of the last decision."""
    _waiting: deque[tuple[Decision, float | None]] = field(default_factory=deque)
    """Decisions whose events are not read yet, with their times."""

    @classmethod
    def of(cls, cell: str, entries: Iterable[LedgerEvent], decisions: Iterable[Decision]) -> Self:
        """Fold a log of one cell, including decisions whose events are missing."""
        board = cls(cell)
        for entry in entries:
            board.fold_event(entry)
        for decision in decisions:
            board.fold_decision(decision)
        while board._waiting:
            board._fold(*board._waiting.popleft())
        return board

    def fold_step(self, time_s: float, entry: LedgerEvent, decisions: Iterable[Decision]) -> None:
        """Fold an event of a time and the decisions about it."""
        self.fold_event(entry, time_s)
        for decision in decisions:
            self.fold_decision(decision, time_s)

    def fold_event(self, entry: LedgerEvent, time_s: float | None = None) -> None:
        """Fold a ledger event, and the decisions that waited for it. A part that raises is left out, and
        counted.

        Args:
            entry: the event and its place.
            time_s: its time; the cell's clock without it.
        """
        self.events += 1
        self._folded = entry.offset
        event = entry.envelope.event
        with self._surviving(event.TYPE):
            self._fold_event(entry, time_s)
        while self._waiting and self._waiting[0][0].place[0] <= self._folded:
            self._fold(*self._waiting.popleft())

    def _fold_event(self, entry: LedgerEvent, time_s: float | None) -> None:
        event = entry.envelope.event
        self.messages.fold_event(entry)
        self.nodes.fold_event(entry.envelope)
        match event:
            case CellConfigured() if self._configuration is None:
                self._configuration = event
                for zone in event.zones:
                    self._add(zone.id)
            case ClockTicked():
                self._read_clock(event.time_s)
            case SolveFinished():
                self.solves.count(event)
        time_s = self._now_s if time_s is None else time_s
        self.jobs.fold_event(time_s, entry.envelope)
        if isinstance(event, RunReport) and event.job_id in self.jobs.by_id:
            self._drop_runs(self.jobs.by_id[event.job_id])
        self.loans.fold_event(entry.envelope)
        for figures in self.zones.values():
            with self._surviving(event.TYPE):
                figures.fold_event(time_s, event)

    def fold_decision(self, decision: Decision, time_s: float | None = None) -> None:
        """Fold a decision, after its event. A restarted worker may write decisions twice: they count once. A
        part that raises is left out, and counted.

        Args:
            decision: the decision.
            time_s: its time; the cell's clock without it.

        Raises:
            InvalidRecordError: the id of the decision is invalid.
        """
        if decision.place <= self._place:
            return
        self._place = decision.place
        if not self.has_event_of(decision):
            self._waiting.append((decision, time_s))
        else:
            self._fold(decision, time_s)

    def has_event_of(self, decision: Decision) -> bool:
        """Return whether the event of a decision is folded.

        Raises:
            InvalidRecordError: the id of the decision is invalid.
        """
        return decision.place[0] <= self._folded

    def _fold(self, decision: Decision, time_s: float | None) -> None:
        with self._surviving(decision.outcome.TYPE):
            self._fold_outcome(decision, time_s)

    def _fold_outcome(self, decision: Decision, time_s: float | None) -> None:
        outcome = decision.outcome
        if decision.time_s is not None:
            self._read_clock(decision.time_s)
        if time_s is None:
            time_s = self._now_s if decision.time_s is None else decision.time_s
        self.messages.fold_decision(decision)
        self.jobs.fold_decision(time_s, decision)
        self.nodes.fold_decision(decision)
        self.loans.fold_decision(outcome)
        match outcome:
            case EventFaulted():
                self.faults += 1
                self.last_fault = outcome
            case ZoneAccepted() if self._configuration is not None:
                zones = tuple(self.nodes.zones.values())
                self._configuration = self._configuration.model_copy(update={"zones": zones})
                if outcome.zone not in self.zones:
                    self._add(outcome.zone)
        for figures in self.zones.values():
            with self._surviving(outcome.TYPE):
                figures.fold_outcome(time_s, outcome)
        for job in self.jobs.leave():
            self.left_busy_s += sum(self.busy_s(job).values())

    def busy_s(self, job: JobTimeline) -> dict[int, float]:
        """Return the time (s) that the samples of each run of a job take at its node's full speed, by the
        run's number."""
        return {run.number: self._busy_s(job, node, run) for (node, _), run in job.runs.items()}

    def _busy_s(self, job: JobTimeline, node: str, run: ReportedRun) -> float:
        speed = self.nodes.samples_per_s(node, job.zone, run.time_s)
        # A cell ignores reports of nodes of other zones.
        return 0.0 if speed is None else max(run.samples_done - run.first_samples, 0) / speed

    def _drop_runs(self, job: JobTimeline) -> None:
        """Keep the latest runs of a job whose generations have no end, such as a service."""
        while self.jobs.kept is not None and len(job.runs) > _RUNS_KEPT:
            node, run_id = next(iter(job.runs))
            self.left_busy_s += self._busy_s(job, node, job.runs.pop((node, run_id)))

    @property
    def waiting(self) -> int:
        """Number of decisions whose events are not read yet."""
        return len(self._waiting)

    @property
    def _now_s(self) -> float:
        """The cell's clock; its epoch before the first tick."""
        if self.time_s is not None:
            return self.time_s
        return 0.0 if self._configuration is None else self._configuration.epoch_s

    @contextmanager
    def _surviving(self, of: str) -> Iterator[None]:
        """Count errors of views, which must not end a watcher: it would read the record again."""
        try:
            yield
        except (MemoryError, OSError, ImportError):
            raise
        except Exception as error:
            self.omissions += 1
            self.last_omission = of, type(error).__name__, str(error)

    def _add(self, zone: str) -> None:
        assert self._configuration is not None
        figures = figures_of(self._configuration, zone, self.jobs, self.nodes)
        if figures is not None:
            self.zones[zone] = figures

    def _read_clock(self, time_s: float) -> None:
        self.first_s = time_s if self.first_s is None else min(self.first_s, time_s)
        self.time_s = time_s if self.time_s is None else max(self.time_s, time_s)


class Boards(dict[str, Board]):
    """Boards of a log's cells, by name."""

    def __init__(self, kept: int | None = None) -> None:
        """Begin before the log; `kept` is as in `Jobs`."""
        super().__init__()
        self._kept = kept

    def fold(self, record: LedgerEvent | Decision) -> None:
        """Fold a record into its cell's board.

        Raises:
            InvalidRecordError: the id of a decision is invalid.
        """
        if isinstance(record, Decision):
            self._of(record.cell).fold_decision(record)
        else:
            self._of(record.envelope.event.cell).fold_event(record)

    @property
    def waiting(self) -> int:
        """Number of decisions whose events are not read yet."""
        return sum(board.waiting for board in self.values())

    def _of(self, cell: str) -> Board:
        return self.setdefault(cell, Board(cell, Jobs(self._kept)))
