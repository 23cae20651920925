"""State of one cell, folded from its log: the basis of displays, summaries and comparisons of simulations."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from infra.views.jobs import Job, Jobs
from infra.views.loans import CellLoans
from infra.views.nodes import Node, Nodes
from infra.views.policy import PolicyFigures, policy_views
from schemas.clock import ClockTicked
from schemas.codec import Decision, Envelope
from schemas.decisions import EventFaulted
from schemas.solves import SolveFinished


@dataclass
class Solves:
    """Counts of the answers of solvers."""

    answers: int = 0
    without_solution: int = 0
    """Answers without a solution, where the time limit ended the search."""
    seconds: float = 0.0
    """Sum of the solvers' times, by their own clocks."""

    def take(self, answer: SolveFinished) -> None:
        """Count an answer."""
        self.answers += 1
        self.without_solution += answer.solution is None or answer.solution.is_empty
        self.seconds += answer.solve_s


@dataclass
class Board:
    """Folds a cell's ledger events and decisions, each in their order."""

    cell: str
    jobs: Jobs = field(default_factory=Jobs)
    nodes: Nodes = field(default_factory=Nodes)
    loans: CellLoans = field(default_factory=CellLoans)
    solves: Solves = field(default_factory=Solves)
    figures: tuple[PolicyFigures, ...] = field(
        default_factory=lambda: tuple(view.figures() for view in policy_views())
    )
    """Figures of the policies."""
    events: int = 0
    faults: int = 0
    """Events that changed nothing because folding them raised."""
    last_fault: EventFaulted | None = None
    omissions: int = 0
    """Records with parts that a view could not fold, and that are not shown."""
    last_omission: str = ""
    """Type of the event, and the exception that was raised."""
    first_s: float | None = None
    time_s: float | None = None
    """First and last time of the cell's clock."""
    _place: tuple[int, int] = (-1, -1)
    """Place of the last folded decision."""

    @classmethod
    def of(cls, cell: str, envelopes: Iterable[Envelope], decisions: Iterable[Decision]) -> Self:
        """Fold a whole log of one cell."""
        board = cls(cell)
        for envelope in envelopes:
            board.take_event(envelope)
        for decision in decisions:
            board.take_decision(decision)
        return board

    @property
    def revenue_micros(self) -> int:
        """Payments less refunds."""
        return sum(job.payment_micros or 0 for job in self.jobs.by_id.values())

    def take_event(self, envelope: Envelope) -> None:
        """Fold a ledger event. A part that raises is left out, and counted."""
        self.events += 1
        with self._surviving(envelope.event.TYPE):
            self._take_event(envelope)

    def _take_event(self, envelope: Envelope) -> None:
        self.jobs.take_event(envelope)
        self.nodes.take_event(envelope)
        self.loans.take_event(envelope)
        match event := envelope.event:
            case ClockTicked():
                self._read_clock(event.time_s)
            case SolveFinished():
                self.solves.take(event)

    def take_decision(self, decision: Decision) -> None:
        """Fold a decision. A restarted worker may write decisions twice: they count once. A part that raises
        is left out, and counted.

        Raises:
            InvalidRecordError: the id of the decision is invalid.
        """
        if decision.place <= self._place:
            return
        self._place = decision.place
        with self._surviving(decision.outcome.TYPE):
            self._take_decision(decision)

    def _take_decision(self, decision: Decision) -> None:
        if decision.time_s is not None:
            self._read_clock(decision.time_s)
        self.jobs.take_decision(decision.outcome)
        self.nodes.take_decision(decision)
        self.loans.take_decision(decision.outcome)
        if isinstance(decision.outcome, EventFaulted):
            self.faults += 1
            self.last_fault = decision.outcome
        for figures in self.figures:
            figures.take_decision(decision)

    def job_cells(self, job: Job) -> dict[str, str]:
        """Return the policies' figures of a job, by the name of the column."""
        return _joined(figures.job_cells(job) for figures in self.figures)

    def node_cells(self, node: Node) -> dict[str, str]:
        """Return the policies' figures of a node, by the name of the column."""
        return _joined(figures.node_cells(node) for figures in self.figures)

    @contextmanager
    def _surviving(self, of: str) -> Iterator[None]:
        """Count errors of views, which must not end a watcher: it would read the record again."""
        try:
            yield
        except (MemoryError, OSError, ImportError):
            raise
        except Exception as error:
            self.omissions += 1
            self.last_omission = f"{of}: {type(error).__name__}: {error}"

    def _read_clock(self, time_s: float) -> None:
        self.first_s = time_s if self.first_s is None else min(self.first_s, time_s)
        self.time_s = time_s if self.time_s is None else max(self.time_s, time_s)
        for figures in self.figures:
            figures.read_clock(self.time_s)


class Boards(dict[str, Board]):
    """Boards of a log's cells, by name."""

    def take(self, record: Envelope | Decision) -> None:
        """Fold a record into its cell's board.

        Raises:
            InvalidRecordError: the id of a decision is invalid.
        """
        if isinstance(record, Decision):
            self._of(record.cell).take_decision(record)
        else:
            self._of(record.event.cell).take_event(record)

    def _of(self, cell: str) -> Board:
        return self.setdefault(cell, Board(cell))


def _joined(parts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {column: cell for part in parts for column, cell in part.items()}
