"""History of one job, from the log."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from infra.figures.board import Board
from infra.figures.jobs import JobTimeline
from infra.text import time_s_of
from infra.views.figures import job_cells
from infra.views.policy import policy_views
from infra.views.sentences import policy_of, sentence
from schemas.base import Event, Outcome, ZoneView
from schemas.cells import CellConfigured
from schemas.codec import Decision, Envelope
from schemas.decisions import EventIgnored, JobStateName
from schemas.fleet import CommandRefused, RunReport, RunStarted
from schemas.solves import SolveRequested
from streams.cell.ledger_event import LedgerEvent


@dataclass(frozen=True)
class Chapter:
    """One event or decision about the job."""

    place: tuple[int, int]
    """Ledger offset, and the index among the decisions about it; the event itself precedes them."""
    time: str | float | None
    """Time of an event as its sender wrote it, or of a decision by the cell's clock (Unix s)."""
    id: str
    record: Event | Outcome
    """Record, or the job's own part of a record about several jobs."""
    note: str | None = None
    """Statement of the records before and after about this one."""

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        note = {} if self.note is None else {"note": self.note}
        return {
            **note,
            "time": self.time,
            "id": self.id,
            "type": self.record.TYPE,
            "data": self.record.model_dump(mode="json"),
        }


class Story:
    """Collects the records of a cell's log about one job; events and decisions are each in their order."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self._chapters: list[Chapter] = []
        self._events: list[LedgerEvent] = []
        self._decisions: list[Decision] = []
        """Records about the job, and the configuration of its cell."""
        self._standing: dict[tuple[str, str], Decision] = {}
        """Latest record of each type on a zone's state, by type and zone."""
        self._ignored: dict[int, EventIgnored] = {}
        """Ignored events that may be about the job, by ledger offset."""
        self._folded: Board | None = None
        """The records so far; None after a further one."""

    @property
    def chapters(self) -> list[Chapter]:
        """Chapters in the order of the ledger, each decision after its cause. Between two ticks of the cell's
        clock, their times do not fall."""
        job = self._job(self._board())
        standing = () if job is None or job.is_over else self._standing.values()
        states = (_chapter(decision, self._own_part(decision.outcome)) for decision in standing)
        in_order = sorted(
            (*self._chapters, *(chapter for chapter in states if chapter is not None)),
            key=lambda chapter: chapter.place,
        )
        policy = _policy(job)
        ignored = {
            offset: f"ignored ({outcome.reason}): {sentence(outcome, policy)}"
            for offset, outcome in self._ignored.items()
        }
        return list(_in_time(_noted(in_order, ignored)))

    @property
    def state(self) -> Literal["unknown"] | JobStateName:
        job = self._job(self._board())
        return "unknown" if job is None else job.state

    @property
    def policy(self) -> str | None:
        """Kind of the policy of the job's zone; None if it is unknown."""
        return _policy(self._job(self._board()))

    @property
    def figures(self) -> dict[str, str]:
        """Its zone's figures of the job by the latest record about it; empty if the cell's configuration is
        not among the records."""
        board = self._board()
        job = self._job(board)
        return {} if job is None else job_cells(board, job)

    def fold_event(self, offset: int, envelope: Envelope) -> None:
        """Add a ledger event, if it is about the job."""
        self._folded = None
        own = self._own_part(envelope.event)
        if own is not None:
            self._chapters.append(Chapter((offset, -1), envelope.time, envelope.id, own))
        if own is not None or isinstance(envelope.event, CellConfigured):
            self._events.append(LedgerEvent(offset, envelope))

    def fold_decision(self, decision: Decision) -> None:
        """Add a decision, if it is about the job. Of the decisions on a zone's state only the latest counts,
        even if it is no longer about the job.

        Raises:
            InvalidRecordError: the id of the decision is invalid.
        """
        self._folded = None
        offset, _ = decision.place
        match outcome := decision.outcome:
            case EventIgnored() if _is_about(outcome, self.job_id) or outcome.reason == "duplicate_event":
                self._ignored[offset] = outcome
                self._decisions.append(decision)
            case ZoneView():
                self._standing[outcome.TYPE, outcome.zone] = decision
                return
        chapter = _chapter(decision, self._own_part(outcome))
        if chapter is not None:
            self._chapters.append(chapter)
            self._decisions.append(decision)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "job_id": self.job_id,
            "state": self.state,
            "figures": self.figures,
            "chapters": [chapter.as_json() for chapter in self.chapters],
        }

    def _board(self) -> Board:
        """Return the records about the job, folded once."""
        if self._folded is None:
            decisions = (*self._decisions, *self._standing.values())
            in_order = sorted(decisions, key=lambda decision: decision.place)
            self._folded = Board.of("", self._events, in_order)
        return self._folded

    def _job(self, board: Board) -> JobTimeline | None:
        return board.jobs.by_id.get(self.job_id)

    def _own_part(self, record: Event | Outcome) -> Event | Outcome | None:
        if getattr(record, "job_id", None) == self.job_id:
            return record
        if isinstance(record, CommandRefused):
            return record if any(run.job_id == self.job_id for run in record.runs) else None
        if isinstance(record, SolveRequested):
            is_named = self.job_id in record.job_ids
            return record.model_copy(update={"job_ids": (self.job_id,)}) if is_named else None
        parts = (view.part_of(record, self.job_id) for view in policy_views())
        return next((part for part in parts if part is not None), None)


def _policy(job: JobTimeline | None) -> str | None:
    return None if job is None else policy_of(job.submission)


def _chapter(decision: Decision, own: Event | Outcome | None) -> Chapter | None:
    return None if own is None else Chapter(decision.place, decision.time_s, decision.id, own)


def _noted(chapters: Iterable[Chapter], ignored: Mapping[int, str]) -> Iterator[Chapter]:
    """Yield chapters with notes on ignored events, and on samples that were lost because a run resumed from a
    checkpoint before the last report."""
    reported_samples, reported_by = 0, ("", "")
    for chapter in chapters:
        offset, index = chapter.place
        report = chapter.record
        note = ignored.get(offset) if index < 0 else None
        if note is None and isinstance(report, RunReport):
            by = (report.node, report.run_id)
            # The other nodes of a run that has started may report its start after its first progress.
            is_new = by[0] == reported_by[0] or by[1] != reported_by[1]
            if isinstance(report, RunStarted) and is_new and report.samples_done < reported_samples:
                kept = report.samples_done
                note = f"{reported_samples} samples were reported before; those after {kept} are lost"
            if is_new or not isinstance(report, RunStarted):
                reported_samples, reported_by = report.samples_done, by
        yield chapter if note is None else replace(chapter, note=note)


def _in_time(chapters: Iterable[Chapter]) -> Iterator[Chapter]:
    """Yield chapters with ascending times: the cell's clock stands still between two ticks, so a decision
    gets the latest time of the events before it.

    A sender's clock may be ahead of the cell's by any amount, so an event does not delay decisions at the
    next time of the cell's clock. Decisions before the first tick have no time.
    """
    clock_s = floor_s = since_s = -math.inf
    for chapter in chapters:
        match chapter.time:
            case str(written):
                time_s = time_s_of(written)
                since_s = since_s if time_s is None else max(since_s, time_s)
                yield chapter
            case None:
                yield chapter
            case time_s:
                floor_s = max(floor_s, since_s) if time_s == clock_s else since_s
                clock_s, since_s = time_s, -math.inf
                yield replace(chapter, time=max(clock_s, floor_s))


def _is_about(ignored: EventIgnored, job_id: str) -> bool:
    job_ids = ignored.facts.get("job_ids", ())
    return ignored.facts.get("job_id") == job_id or (isinstance(job_ids, tuple) and job_id in job_ids)
