"""Reading topics from their beginning, or from now on."""

import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from infra.log.target import Target
from streams.kafka_records import read_record
from streams.records import ReadRecord

_TIMEOUT_S = 15.0
_BATCH_RECORDS = 1_000
_RETRY_S = 0.2
_NOT_READY = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)


class ReadError(RuntimeError):
    """A topic cannot be read. The message is one line."""


class LogReader:
    """Reads whole topics, every partition of them, in no consumer group."""

    def __init__(self, target: Target, topics: Sequence[str], start: Literal["beginning", "end"]) -> None:
        """Take position. Records sent after this returns are read, whatever `start` is.

        Raises:
            ReadError: the broker does not answer, or a topic does not exist.
        """
        self._consumer = Consumer(
            {
                "bootstrap.servers": target.bootstrap_servers,
                "client.id": "millrace-reader",
                "group.id": "millrace-reader",  # asked for by the client, never used
                "enable.auto.commit": False,
                "enable.partition.eof": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        try:
            self._ends = {
                (topic, partition): self._end(topic, partition)
                for topic in topics
                for partition in self._partitions(topic)
            }
        except KafkaException as error:
            raise ReadError(f"{target.bootstrap_servers}: {error.args[0].str()}") from None
        self._consumer.assign(
            [
                TopicPartition(topic, partition, OFFSET_BEGINNING if start == "beginning" else end)
                for (topic, partition), (_, end) in self._ends.items()
            ]
        )

    def to_end(self, on_progress: Callable[[float], None] = lambda _part: None) -> Iterator[ReadRecord]:
        """Every record up to the topics' ends as they were when this reader was made.

        Raises:
            ReadError: the broker falls silent before that.
        """
        left = {place: end for place, (low, end) in self._ends.items() if end > low}
        total = sum(end - low for low, end in self._ends.values()) or 1
        while left:
            messages = self._consume(_TIMEOUT_S)
            if not messages:
                raise ReadError(f"nothing more of {', '.join(sorted({topic for topic, _ in left}))} is sent")
            for record in messages:
                place = (record.topic, record.partition)
                if place not in left:
                    continue
                if record.offset < left[place]:
                    yield record
                if record.offset + 1 >= left[place]:
                    del left[place]
            behind = sum(end - self._position(place) for place, end in left.items())
            on_progress(1 - behind / total)

    def poll(self, timeout_s: float) -> list[ReadRecord]:
        """What has come since, after waiting for at most `timeout_s` for the first of it.

        Raises:
            ReadError: the broker answers with an error.
        """
        return self._consume(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def _partitions(self, topic: str) -> list[int]:
        found = _patiently(lambda: self._consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic])
        if found.error is not None or not found.partitions:
            raise ReadError(f"there is no topic {topic}: `millrace topics create` makes it")
        return sorted(found.partitions)

    def _end(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset and the one after the last."""
        place = TopicPartition(topic, partition)
        low, high = _patiently(lambda: self._consumer.get_watermark_offsets(place, timeout=_TIMEOUT_S))
        return low, high

    def _position(self, place: tuple[str, int]) -> int:
        (position,) = self._consumer.position([TopicPartition(*place)])
        return max(position.offset, 0)

    def _consume(self, timeout_s: float) -> list[ReadRecord]:
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        messages = [first, *self._consumer.consume(_BATCH_RECORDS, 0)]
        return [_record(message) for message in messages]


def _patiently(question: Callable[[], Any]) -> Any:
    """Ask again while the broker says that it is not ready, as it does for topics just made.

    Raises:
        KafkaException: it says something else, or says so for too long.
    """
    deadline_s = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return question()
        except KafkaException as error:
            if error.args[0].code() not in _NOT_READY or time.monotonic() > deadline_s:
                raise
        time.sleep(_RETRY_S)


def _record(message: Any) -> ReadRecord:
    error = message.error()
    if error is not None:
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise ReadError(f"topic {message.topic()} is gone")
        raise ReadError(error.str())
    return read_record(message)
