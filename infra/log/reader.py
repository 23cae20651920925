"""Readers of topics from their beginning, or from now on; and of the boards of cells."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self

from infra.log.target import Target
from infra.views.board import Boards
from schemas.base import Event, Outcome
from schemas.codec import Decision, Envelope, InvalidRecordError, decode_decision, decode_event
from schemas.topics import DECISIONS, LEDGER
from streams.kafka.reader import KafkaReader
from streams.kafka.records import ReadRecord


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

    def __init__(self, target: Target) -> None:
        """Position the reader at the beginning."""
        self.boards = Boards()
        self._ledger = target.topic(LEDGER)
        self._reader = LogReader(target, [self._ledger, target.topic(DECISIONS)], "beginning")

    def catch_up(self) -> list[Envelope | Decision]:
        """Fold and return all present records."""
        return list(self._fold(self._reader.to_end()))

    def poll(self, timeout_s: float) -> list[Envelope | Decision]:
        """Fold and return new records, after a wait of `timeout_s` at most."""
        return list(self._fold(iter(self._reader.poll(timeout_s))))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.__exit__(kind, error, trace)

    def _fold(self, records: Iterator[ReadRecord]) -> Iterator[Envelope | Decision]:
        for record in records:
            try:
                item: Envelope | Decision
                if record.topic == self._ledger:
                    item = decode_event(record.value, record.headers)
                else:
                    item = decode_decision(record.value or b"")
                self.boards.take(item)
                yield item
            except InvalidRecordError:
                continue  # replay reports it


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
