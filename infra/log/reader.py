"""Reading topics from their beginning, or from now on."""

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Literal, Self

from infra.log.target import Target
from streams.kafka_reader import KafkaReader, ReadError
from streams.records import ReadRecord

__all__ = ["LogReader", "ReadError"]


class LogReader:
    """Reads whole topics of a log, every partition of them."""

    def __init__(self, target: Target, topics: Sequence[str], start: Literal["beginning", "end"]) -> None:
        """Take position. Records sent after this returns are read, whatever `start` is.

        Raises:
            ReadError: the broker does not answer, or a topic does not exist or is not ours to read.
        """
        self._reader = KafkaReader(target.kafka)
        self._reader.follow([self._reader.slice(topic) for topic in topics], start)

    def to_end(self, on_progress: Callable[[float], None] = lambda _part: None) -> Iterator[ReadRecord]:
        """Every record up to the topics' ends as they were when this reader was made.

        Raises:
            ReadError: the broker falls silent before that.
        """
        return self._reader.to_end(on_progress)

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
