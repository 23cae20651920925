"""Asking through the log: events are sent, and what is decided because of them comes back."""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from infra.log.reader import LogReader
from infra.log.target import Target
from schemas.codec import Decision, InvalidRecordError, decode_decision
from schemas.dead_letters import REASON_HEADER
from schemas.topics import DECISIONS, LEDGER
from streams.records import ReadRecord

_POLL_S = 0.5


@dataclass(frozen=True)
class Refusal:
    """Intake did not let an event into the ledger."""

    event_id: str
    reason: str


@dataclass(frozen=True)
class Acceptance:
    """An event is in the ledger."""

    event_id: str


Answer = Decision | Refusal | Acceptance


class Answers:
    """Listens from its making on, so that no answer to an event sent afterwards is missed."""

    def __init__(self, target: Target, input_topic: str, decided: bool = True) -> None:
        """Listen for the dead letters of the input topic that the events go to, and for decisions.

        Args:
            decided: False for events that call for no decision: that the ledger has them is the answer.
        """
        self._dead_letters = target.dead_letters(input_topic)
        self._ledger = target.topic(LEDGER)
        self._reader = LogReader(
            target, [target.topic(DECISIONS) if decided else self._ledger, self._dead_letters], "end"
        )

    def to(
        self,
        event_ids: Collection[str],
        timeout_s: float,
        check_alive: Callable[[], None] = lambda: None,
    ) -> Iterator[Answer]:
        """The first answer to each event as it comes, until all are there or none comes for `timeout_s`.

        `check_alive` is called again and again; what it raises ends the wait.
        """
        waiting = set(event_ids)
        deadline_s = time.monotonic() + timeout_s
        while waiting and time.monotonic() < deadline_s:
            check_alive()
            for record in self._reader.poll(_POLL_S):
                answer = self._answer(record)
                event_id = answer.cause if isinstance(answer, Decision) else answer and answer.event_id
                if answer is not None and event_id in waiting:
                    waiting.remove(event_id)
                    deadline_s = time.monotonic() + timeout_s
                    yield answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.__exit__(kind, error, trace)

    def _answer(self, record: ReadRecord) -> Answer | None:
        headers = {name: value or b"" for name, value in record.headers}
        event_id = headers.get("ce_id", b"").decode(errors="replace")
        if record.topic == self._ledger:
            return Acceptance(event_id)
        if record.topic == self._dead_letters:
            return Refusal(
                event_id,
                headers.get(REASON_HEADER, b"").decode(errors="replace"),
            )
        try:
            return decode_decision(record.value or b"")
        except InvalidRecordError:
            return None  # replay is who says so
