"""Readers of topics from their beginning, or from now on; and of the boards of cells."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Literal, Self

from infra.figures.board import Boards
from infra.log.target import Target
from schemas.base import Event, Outcome
from schemas.codec import Decision, Envelope, InvalidRecordError, decode_decision, decode_event
from schemas.topics import DECISIONS, LEDGER
from streams.cell.ledger_event import LedgerEvent
from streams.kafka.reader import KafkaReader
from streams.kafka.records import ReadRecord

_PART = 1_000
"""Records that are read of one topic before those of the other."""
_MOST_WAITING = 10_000
"""Decisions that wait for their events, from which on only events are read."""


class LogReader(KafkaReader):
    """Reads all partitions of topics of a log, by `to_end` and then `poll`."""

    def __init__(
        self, target: Target, topics: Sequence[str], start: Literal["beginning", "end"] | float
    ) -> None:
        """Position the reader at the beginning, at the end, or at a Unix time. Records that are sent after
        this returns are read in all cases.

        Raises:
            ReadError: the broker does not answer, or a topic does not exist or may not be read.
        """
        super().__init__(target.kafka)
        self.follow([self.slice(topic) for topic in topics], start)


class BoardFollower:
    """Folds ledger and decisions from the beginning on into one board per cell."""

    def __init__(self, target: Target, kept: int | None = None) -> None:
        """Position the readers at the beginning; `kept` is as in `Jobs`."""
        self.boards = Boards(kept)
        # Read apart, so that neither topic gets far ahead of the other.
        self._ledger = LogReader(target, [target.topic(LEDGER)], "beginning")
        self._decisions = LogReader(target, [target.topic(DECISIONS)], "beginning")

    def catch_up(self) -> Iterator[Envelope | Decision]:
        """Fold and yield all present records."""
        ledger, decisions = self._ledger.to_end(), self._decisions.to_end()
        is_open = True
        while is_open:
            events, answers = list(islice(ledger, _PART)), list[ReadRecord]()
            yield from self._fold(events, [])
            if not events or self.boards.waiting < _MOST_WAITING:
                answers = list(islice(decisions, _PART))
                yield from self._fold([], answers)
            is_open = bool(events or answers)

    def poll(self, timeout_s: float) -> list[Envelope | Decision]:
        """Fold and return new records, after a wait of `timeout_s` at most for an event."""
        events = self._ledger.poll(timeout_s)
        return list(self._fold(events, self._decisions.poll(0.0)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ledger.__exit__(kind, error, trace)
        self._decisions.__exit__(kind, error, trace)

    def _fold(
        self, events: Sequence[ReadRecord], decisions: Sequence[ReadRecord]
    ) -> Iterator[Envelope | Decision]:
        for record in events:
            with suppress(InvalidRecordError):  # replay reports it
                envelope = decode_event(record.value, record.headers)
                self.boards.fold(LedgerEvent(record.offset, envelope))
                yield envelope
        for record in decisions:
            with suppress(InvalidRecordError):
                decision = decode_decision(record.value or b"")
                self.boards.fold(decision)
                yield decision


def decisions_in(records: Iterable[ReadRecord], *types: type[Outcome]) -> Iterator[Decision]:
    """Yield the valid decisions in records, of these types alone if any are given; replay reports others."""
    for record in records:
        if _is_of(record, types):
            with suppress(InvalidRecordError):
                yield decode_decision(record.value or b"")


def events_in(records: Iterable[ReadRecord], *types: type[Event]) -> Iterator[Envelope]:
    """Yield the valid events in records, of these types alone if any are given; intake or replay report
    others."""
    for record in records:
        if _is_of(record, types):
            with suppress(InvalidRecordError):
                yield decode_event(record.value, record.headers)


def _is_of(record: ReadRecord, types: Sequence[type[Event | Outcome]]) -> bool:
    """Return whether a record is of one of the types, by its header, without decoding it."""
    ce_type = dict(record.headers).get("ce_type")
    return not types or any(ce_type == kind.TYPE.encode() for kind in types)
