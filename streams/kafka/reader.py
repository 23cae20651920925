"""Reading of whole topics, without a group and without commits."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from schemas.errors import ReadableError
from schemas.kafka_connection import KafkaConnection
from streams.kafka.configuration import reader
from streams.kafka.consumer import RecordConsumer, UnreadTopicError
from streams.kafka.faults import LEADER_ERRORS, ConnectionFaults, denial, described_error
from streams.kafka.records import Partition, ReadRecord

_POLL_S = 10.0
_RETRY_TIMEOUT_S = {
    **dict.fromkeys(LEADER_ERRORS, 60.0),
    KafkaError.UNKNOWN_TOPIC_OR_PART: 10.0,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS: 10.0,
    KafkaError._TRANSPORT: 10.0,
}
"""Time for which a request is repeated, by its error; other errors are not repeated. A new partition lacks
its leader for a moment, and on a slow machine for half a minute."""
_RETRY_AFTER_S = 0.1
_TRANSACTION_S = 1.0
"""Time for which an open transaction is not logged: after its commit it may stay open for milliseconds."""
_BATCH_RECORDS = 1_000
_LONGEST_POLL_S = 0.5
"""Longest poll; signals are handled between two polls."""

_Answer = TypeVar("_Answer")

_log = logging.getLogger(__name__)


class ReadError(ReadableError):
    """A topic cannot be read. The message is one line."""


@dataclass(frozen=True)
class TopicSlice:
    """The part of a topic that exists at one time.

    Its offsets do not count records: some of them hold markers of transactions, aborted records, or compacted
    records.
    """

    topic: str
    low: Mapping[int, int]
    high: Mapping[int, int]
    """End offset by partition, exclusive. The slice includes open transactions."""


class KafkaReader:
    """Reads slices of topics, one partition after another (`read`), or several topics side by side (`follow`,
    then `to_end` or `poll`).

    Records are delivered once their transactions are committed. If one is open, reading to an end waits until
    it is committed, aborted or timed out, and logs this.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._faults = ConnectionFaults(connection)
        # Only an event shows the end of a partition: there may be no record at the last offset.
        settings = {"enable.partition.eof": True, "auto.offset.reset": "error", "fetch.wait.max.ms": 100}
        client = {
            **reader(connection, "millrace-reader"),
            **settings,
            "log_level": 0,
            "error_cb": self._faults.note,
        }
        try:
            self._consumer = RecordConsumer(client, _log, repeats_requests=False)
            # The reading client would report the first open transaction as the end of a partition.
            self._ends = Consumer({**client, "isolation.level": "read_uncommitted"})
        except KafkaException as error:
            raise ReadError(described_error(connection, error.args[0], "set up a reader")) from None
        self._followed: dict[Partition, tuple[int, int]] = {}
        self._beyond: list[ReadRecord] = []
        """Records fetched by `to_end` beyond its end, for `poll`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()
        self._ends.close()

    def slice(self, topic: str) -> TopicSlice:
        """Return the slice of the records that `topic` holds now.

        Raises:
            ReadError: Kafka does not answer, the topic is missing, or the client may not read it.
        """
        # By the reading client, which then has the leaders; without them it fetches only after 0.5 s.
        found = self._ask(
            topic, lambda: self._consumer.client.list_topics(topic, timeout=_POLL_S).topics[topic]
        )
        if found.error is not None or not found.partitions:
            denied = found.error and denial(self._connection, found.error, f"read topic {topic}")
            raise ReadError(denied or f"there is no topic {topic}: `millrace topics create` makes it")
        watermarks = {partition: self._watermarks(topic, partition) for partition in sorted(found.partitions)}
        return TopicSlice(
            topic,
            {partition: low for partition, (low, _) in watermarks.items()},
            {partition: high for partition, (_, high) in watermarks.items()},
        )

    def read(self, part: TopicSlice) -> Iterator[ReadRecord]:
        """Yield every record of `part`, partition by partition.

        Raises:
            ReadError: Kafka does not answer.
        """
        for partition, high in part.high.items():
            place, low = Partition(part.topic, partition), part.low[partition]
            self._seek({place: (low, high)}, {place: low})
            yield from self.to_end()

    def follow(self, parts: Sequence[TopicSlice], start: Literal["beginning", "end"] | float) -> None:
        """Seek in all of `parts`: to their topics' beginnings, to the ends of the slices, or to the first
        records that are no older than a Unix time.

        Raises:
            ReadError: Kafka does not answer.
        """
        if not isinstance(start, str):
            parts = [self._since(part, start) for part in parts]
        followed = {
            Partition(part.topic, partition): (part.low[partition], high)
            for part in parts
            for partition, high in part.high.items()
        }
        places: dict[str, Callable[[int, int], int]] = {
            "beginning": lambda _low, _end: OFFSET_BEGINNING,
            "end": lambda _low, end: end,
        }
        offset = places[start] if isinstance(start, str) else lambda low, _end: low
        self._seek(followed, {place: offset(*ends) for place, ends in followed.items()})

    def to_end(
        self,
        on_progress: Callable[[float], None] = lambda _part: None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[ReadRecord]:
        """Yield every record up to the ends of the followed slices, or until `is_stopped` returns true.

        Raises:
            ReadError: the broker becomes silent before that.
        """
        left = {place: end for place, (low, end) in self._followed.items() if end > low}
        total = sum(end - low for low, end in self._followed.values()) or 1
        deadline_s = time.monotonic() + _POLL_S
        while left and not is_stopped():
            records = self._fetch(min(max(deadline_s - time.monotonic(), 0.0), _LONGEST_POLL_S))
            ended = [place for place, end in left.items() if self._consumer.ended.get(place, -1) >= end]
            if not records and not ended:
                deadline_s = self._extended(left, deadline_s)
                continue
            for record in records:
                if record.offset >= self._followed[record.place][1]:
                    self._beyond.append(record)
                elif is_stopped():
                    return
                else:
                    yield record
                if record.place in left and record.offset + 1 >= left[record.place]:
                    del left[record.place]
            for place in ended:
                left.pop(place, None)
            # From here on, since the caller takes its time with the records.
            deadline_s = time.monotonic() + _POLL_S
            behind = sum(end - self._position(place) for place, end in left.items())
            on_progress(1 - behind / total)

    def poll(self, timeout_s: float) -> list[ReadRecord]:
        """Return the next records of the followed topics, after waiting for the first for at most
        `timeout_s`.

        Raises:
            ReadError: the broker answers with an error.
        """
        beyond, self._beyond = self._beyond, []
        return beyond or self._fetch(timeout_s)

    def _fetch(self, timeout_s: float) -> list[ReadRecord]:
        try:
            return self._consumer.read(timeout_s, _BATCH_RECORDS)
        except UnreadTopicError as unread:
            if unread.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise ReadError(f"topic {unread.topic} is gone") from None
            action = f"read topic {unread.topic}"
            raise ReadError(described_error(self._connection, unread.error, action)) from None

    def _seek(self, followed: dict[Partition, tuple[int, int]], offsets: Mapping[Partition, int]) -> None:
        self._beyond, self._followed = [], followed
        self._consumer.assign(offsets)

    def _extended(self, left: Mapping[Partition, int], deadline_s: float) -> float:
        """Return the deadline (monotonic time) to wait further for partitions that are `left`, with their
        ends.

        Raises:
            ReadError: the deadline has passed, and no open transaction explains it.
        """
        now_s = time.monotonic()
        if now_s < deadline_s - _POLL_S + _TRANSACTION_S:
            return deadline_s
        for place, end in left.items():
            if self._consumer.ended.get(place, end) < end:
                self._consumer.transactions.report(*place, self._consumer.ended[place])
        if now_s < deadline_s:
            return deadline_s
        if any(self._stable_end(place) < end for place, end in left.items()):
            return time.monotonic() + _POLL_S
        raise ReadError(
            f"the broker sends no more records of {', '.join(sorted({topic for topic, _ in left}))}"
        )

    def _stable_end(self, place: Partition) -> int:
        """Return the offset of the first open transaction of a partition, or else its end."""
        partition = TopicPartition(*place)
        return int(
            self._ask(
                place.topic, lambda: self._consumer.client.get_watermark_offsets(partition, timeout=_POLL_S)
            )[1]
        )

    def _position(self, place: Partition) -> int:
        (position,) = self._consumer.client.position([TopicPartition(*place)])
        return max(position.offset, 0)

    def _since(self, part: TopicSlice, since_s: float) -> TopicSlice:
        """Return the records of a slice that are no older than a time."""
        asked = [TopicPartition(part.topic, partition, int(since_s * 1_000)) for partition in part.high]
        found = self._ask(part.topic, lambda: self._ends.offsets_for_times(asked, timeout=_POLL_S))
        # Below 0 without such a record.
        low = {
            place.partition: min(place.offset, part.high[place.partition])
            if place.offset >= 0
            else part.high[place.partition]
            for place in found
        }
        return TopicSlice(part.topic, low, part.high)

    def _watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        low, high = self._ask(topic, lambda: self._ends.get_watermark_offsets(place, timeout=_POLL_S))
        return low, high

    def _ask(self, topic: str, question: Callable[[], _Answer]) -> _Answer:
        try:
            return retry_query(question, self._note_faults)
        except KafkaException as error:
            raise ReadError(described_error(self._connection, error.args[0], f"read topic {topic}")) from None

    def _note_faults(self) -> None:
        self._ends.poll(0)  # calls `error_cb` with the reason, if there is one
        if self._faults.lasting is not None:
            raise ReadError(self._faults.lasting) from None


def retry_query(
    question: Callable[[], _Answer],
    between: Callable[[], None] = lambda: None,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> _Answer:
    """Repeat a query to Kafka while it fails with a transient error.

    Args:
        between: called after each failure; an exception of it ends the queries.

    Raises:
        KafkaException: an error that is not transient, or that has lasted for too long.
    """
    start_s = now_s()
    while True:
        try:
            return question()
        except KafkaException as error:
            between()
            timeout_s = _RETRY_TIMEOUT_S.get(error.args[0].code())
            if timeout_s is None or now_s() - start_s > timeout_s:
                raise
            sleep(_RETRY_AFTER_S)
