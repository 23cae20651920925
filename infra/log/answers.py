"""Requests through the log: sends events and returns the decisions that they cause."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from infra.log.reader import LogReader
from infra.log.target import Target
from schemas.base import Event
from schemas.codec import Decision, InvalidRecordError, decode_decision
from schemas.decisions import EventWithoutEffect, JobAdmitted, JobOutcome, JobRejected, JobWithdrawn
from schemas.jobs import JobSubmitted, JobWithdrawalRequested
from schemas.topics import DECISIONS, REASON_HEADER
from streams.kafka.records import ReadRecord

_POLL_S = 0.5


@dataclass(frozen=True)
class Refusal:
    """Rejection of an event by intake."""

    event_id: str
    reason: str


Answer = Decision | Refusal


class Awaited:
    """Events that wait for their answers, by id.

    Most are answered by the first decision that they cause. A bid may be decided by a later event, such as a
    solver's answer, and a withdrawn job may have workers that stop first. The answer to these is the decision
    that admits or ends the job, whatever its cause.
    """

    def __init__(self, events: Mapping[str, Event]) -> None:
        """Wait for answers to all of the events."""
        self.events = dict(events)
        self._jobs = {
            (event.cell, event.user, event.job_id): event_id
            for event_id, event in events.items()
            if isinstance(event, JobSubmitted | JobWithdrawalRequested)
        }

    def resolve(self, answer: Answer) -> str | None:
        """Remove the event that this answers, and return its id; None if it answers no event."""
        event_id = self._answered_by(answer)
        return event_id if event_id is not None and self.events.pop(event_id, None) is not None else None

    def _answered_by(self, answer: Answer) -> str | None:
        if isinstance(answer, Refusal):
            return answer.event_id
        outcome = answer.outcome
        caused_by = self.events.get(answer.cause)
        changed_nothing = isinstance(outcome, EventWithoutEffect)
        if changed_nothing or not isinstance(caused_by, JobWithdrawalRequested | None):
            return answer.cause
        if isinstance(outcome, JobOutcome) and not outcome.is_of_another_job:
            event_id = self._jobs.get((answer.cell, outcome.user, outcome.job_id))
            if event_id is not None and _decides(outcome, self.events.get(event_id)):
                return event_id
        return None


class Answers:
    """Reads answers from its creation on, so it misses no answer to an event that is sent afterwards."""

    def __init__(self, target: Target, input_topic: str) -> None:
        """Begin to read decisions, and the dead letters of the events' input topic."""
        self._dead_letters = target.dead_letters(input_topic)
        self._reader = LogReader(target, [target.topic(DECISIONS), self._dead_letters], "end")

    def to(
        self,
        events: Mapping[str, Event],
        timeout_s: float,
        check_running: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[str, Answer]]:
        """Yield the first answer to each event, with its id, until all are answered or `timeout_s` pass.

        Args:
            events: Events by id; `Awaited` defines their answers.
            timeout_s: Longest time to the first answer, and between two answers.
            check_running: Function that is called repeatedly; its errors end the wait.
        """
        awaited = Awaited(events)
        deadline_s = time.monotonic() + timeout_s
        while awaited.events and time.monotonic() < deadline_s:
            check_running()
            for record in self._reader.poll(_POLL_S):
                answer = self._answer(record)
                if answer is None:
                    continue
                event_id = awaited.resolve(answer)
                if event_id is not None:
                    deadline_s = time.monotonic() + timeout_s
                    yield event_id, answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.__exit__(kind, error, trace)

    def _answer(self, record: ReadRecord) -> Answer | None:
        headers = {name: value or b"" for name, value in record.headers}
        event_id = headers.get("ce_id", b"").decode(errors="replace")
        if record.topic == self._dead_letters:
            return Refusal(
                event_id,
                headers.get(REASON_HEADER, b"").decode(errors="replace"),
            )
        try:
            return decode_decision(record.value or b"")
        except InvalidRecordError:
            return None  # replay reports it


def _decides(outcome: JobOutcome, event: Event | None) -> bool:
    """Return whether the outcome ends the wait for a job that was submitted, or withdrawn."""
    match event:
        case JobSubmitted():
            return isinstance(outcome, JobAdmitted | JobRejected | JobWithdrawn)
        case JobWithdrawalRequested():
            return not isinstance(outcome, JobAdmitted)
    return False
