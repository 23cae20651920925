"""Asking through the log: sends events and returns the decisions that they cause."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from infra.log.reader import LogReader
from infra.log.target import Target
from schemas.base import Event
from schemas.codec import Decision, InvalidRecordError, decode_decision
from schemas.decisions import JobAdmitted, JobRejected, JobWithdrawn
from schemas.jobs import JobSubmitted
from schemas.topics import DECISIONS, REASON_HEADER
from streams.kafka.records import ReadRecord

_POLL_S = 0.5


@dataclass(frozen=True)
class Refusal:
    """Intake did not let an event into the ledger."""

    event_id: str
    reason: str


Answer = Decision | Refusal


class Answers:
    """Listens from its making on, so that no answer to an event sent afterwards is missed."""

    def __init__(self, target: Target, input_topic: str) -> None:
        """Listen for the dead letters of the input topic that the events go to, and for decisions."""
        self._dead_letters = target.dead_letters(input_topic)
        self._reader = LogReader(target, [target.topic(DECISIONS), self._dead_letters], "end")

    def to(
        self,
        events: Mapping[str, Event],
        timeout_s: float,
        check_alive: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[str, Answer]]:
        """The first answer to each event, with its id, until all are there or none comes for `timeout_s`.

        Args:
            events: by id. A bid may be decided by a later event, a solver's answer; any decision about its
                job then is its answer.
            check_alive: called again and again; what it raises ends the wait.
        """
        waiting = set(events)
        bids = {
            (bid.cell, bid.user, bid.job_id): event_id
            for event_id, bid in events.items()
            if isinstance(bid, JobSubmitted)
        }
        deadline_s = time.monotonic() + timeout_s
        while waiting and time.monotonic() < deadline_s:
            check_alive()
            for record in self._reader.poll(_POLL_S):
                answer = self._answer(record)
                if answer is None:
                    continue
                event_id = _answered_by(answer, waiting, bids)
                if event_id in waiting:
                    waiting.remove(event_id)
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
            return None  # replay is who says so


def _answered_by(answer: Answer, waiting: Collection[str], bids: Mapping[tuple[str, str, str], str]) -> str:
    """The id of the event that an answer is about; `bids` has those of bids by cell, user and job."""
    if not isinstance(answer, Decision):
        return answer.event_id
    if answer.cause in waiting:
        return answer.cause
    match answer.outcome:
        case JobRejected(reason="duplicate_job"):
            return answer.cause  # another bid for the same job
        case JobAdmitted() | JobRejected() | JobWithdrawn() as decided:
            return bids.get((answer.cell, decided.user, decided.job_id), answer.cause)
    return answer.cause
