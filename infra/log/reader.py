"""Reading topics from their beginning, or from now on; keeping a cell's board up to date."""

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Literal, Self

from infra.log.target import Target
from infra.views.board import Boards
from schemas.codec import Decision, Envelope, InvalidRecordError, decode_decision, decode_event
from schemas.topics import DECISIONS, LEDGER
from streams.kafka.reader import KafkaReader
from streams.kafka.records import ReadRecord


class LogReader:
    """Reads topics of a log, every partition of them."""

    def __init__(
        self, target: Target, topics: Sequence[str], start: Literal["beginning", "end"] | float
    ) -> None:
        """Take position: at the beginning, at the end, or at a Unix time. Records sent after this returns are
        read, whatever `start` is.

        Raises:
            ReadError: the broker does not answer, or a topic does not exist or is not ours to read.
        """
        self._reader = KafkaReader(target.kafka)
        self._reader.follow([self._reader.slice(topic) for topic in topics], start)

    def to_end(
        self,
        on_progress: Callable[[float], None] = lambda _part: None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[ReadRecord]:
        """Every record up to the topics' ends as they were when this reader was made, or until it is stopped.

        Raises:
            ReadError: the broker falls silent before that.
        """
        return self._reader.to_end(on_progress, is_stopped)

    def poll(self, timeout_s: float) -> list[ReadRecord]:
        """What has come since, after waiting for at most `timeout_s` for the first of it.

        Raises:
            ReadError: the broker answers with an error.
        """
        return self._reader.poll(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.__exit__(kind, error, trace)


class BoardFollower:
    """Reads ledger and decisions from the beginning, and on, into one board per cell."""

    def __init__(self, target: Target) -> None:
        """Take position at the beginning."""
        self.boards = Boards()
        self._ledger = target.topic(LEDGER)
        self._reader = LogReader(target, [self._ledger, target.topic(DECISIONS)], "beginning")

    def catch_up(self) -> list[Envelope | Decision]:
        """Take in all that is there now."""
        return list(self._take_in(self._reader.to_end()))

    def poll(self, timeout_s: float) -> list[Envelope | Decision]:
        """Take in what has come since, after waiting for it for at most `timeout_s`."""
        return list(self._take_in(iter(self._reader.poll(timeout_s))))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.__exit__(kind, error, trace)

    def _take_in(self, records: Iterator[ReadRecord]) -> Iterator[Envelope | Decision]:
        for record in records:
            try:
                taken: Envelope | Decision
                if record.topic == self._ledger:
                    taken = decode_event(record.value, record.headers)
                else:
                    taken = decode_decision(record.value or b"")
                self.boards.take(taken)
                yield taken
            except InvalidRecordError:
                continue  # replay is who says so
