"""Where replay reads a ledger and its decisions: Kafka, up to the present end."""

import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from schemas.codec import InvalidRecordError
from schemas.topics import DECISIONS, LEDGER, topic_name
from streams.cell import LedgerEvent
from streams.heads import KeptHead
from streams.kafka_records import read_record
from streams.ledger import read_ledger
from streams.records import ReadRecord
from streams.replay import LIVE, DecisionRecord, Kind, Verdict, verify

Result = TypeVar("Result")

_POLL_S = 10.0
_PASSING = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._TRANSPORT,
}
_PATIENCE_S = 10.0
"""How long a question is asked again while a partition is without its leader."""
_RETRY_AFTER_S = 0.1


class ReplayError(Exception):
    """A ledger or its decisions cannot be read. The message is one line."""


@dataclass(frozen=True)
class TopicSlice:
    """The part of a topic that exists at one moment."""

    topic: str
    low: Mapping[int, int]
    high: Mapping[int, int]
    """By partition; exclusive."""


def verify_kafka(
    bootstrap_servers: str,
    topic_prefix: str,
    cell: str | None = None,
    tolerated: Collection[Kind] = LIVE,
    kept: Iterable[KeptHead] = (),
) -> Verdict:
    """Verify one cell, or all, as they lie on Kafka at this moment; workers may go on meanwhile.

    Args:
        tolerated, kept: see `streams.replay.verify`.

    Raises:
        ReplayError: if Kafka does not answer, or records of the ledger's beginning are gone.
    """
    with KafkaReader(bootstrap_servers) as reader:
        decisions = reader.slice(topic_name(topic_prefix, DECISIONS))
        # Read after the decisions' end is known, the ledger holds the cause of each of them.
        ledger = reader.slice(topic_name(topic_prefix, LEDGER))
        events = ledger_events(reader, ledger, cell)
        return on_disk(lambda: verify(events, decision_records(reader, decisions, cell), tolerated, kept))


def on_disk(work: Callable[[], Result]) -> Result:
    """Do what needs room for a temporary database.

    Raises:
        ReplayError: if there is none.
    """
    try:
        return work()
    except sqlite3.Error as error:
        raise ReplayError(f"replay needs room on disk, in TMPDIR or /var/tmp: {error}") from None


class KafkaReader:
    """Reads slices of topics without joining a group or committing anything."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "millrace-replay",  # demanded by the client, used for nothing
                "enable.auto.commit": False,
                "enable.partition.eof": False,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )

    def __enter__(self) -> "KafkaReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def slice(self, topic: str) -> TopicSlice:
        """What `topic` holds now.

        Raises:
            ReplayError: if Kafka does not answer or the topic is missing.
        """
        found = self._ask(lambda: self._consumer.list_topics(topic, timeout=_POLL_S).topics[topic])
        if found.error is not None:
            raise ReplayError(f"topic {topic}: {found.error.str()}")
        watermarks = {partition: self._watermarks(topic, partition) for partition in sorted(found.partitions)}
        return TopicSlice(
            topic,
            {partition: low for partition, (low, _) in watermarks.items()},
            {partition: high for partition, (_, high) in watermarks.items()},
        )

    def read(self, part: TopicSlice) -> Iterator[ReadRecord]:
        """Every record of `part`, partition by partition.

        Raises:
            ReplayError: if Kafka does not answer.
        """
        for partition, high in part.high.items():
            position = part.low[partition]
            self._consumer.assign([TopicPartition(part.topic, partition, position)])
            while position < high:
                message: Any = self._consumer.poll(_POLL_S)
                if message is None:
                    raise ReplayError(
                        f"{part.topic}[{partition}]@{position}: no record within {_POLL_S:.0f} s"
                    )
                if message.error() is not None:
                    raise ReplayError(f"{part.topic}[{partition}]@{position}: {message.error().str()}")
                position = message.offset() + 1
                if message.offset() < high:
                    yield read_record(message)

    def _watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        low, high = self._ask(lambda: self._consumer.get_watermark_offsets(place, timeout=_POLL_S))
        return low, high

    def _ask(self, question: Callable[[], Any]) -> Any:
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return question()
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if reason.code() not in _PASSING or time.monotonic() > deadline_s:
                    raise ReplayError(f"Kafka at {self._bootstrap_servers}: {reason.str()}") from None
                time.sleep(_RETRY_AFTER_S)


def ledger_events(reader: KafkaReader, ledger: TopicSlice, cell: str | None) -> Iterator[LedgerEvent]:
    """The events of one cell, or of all, partition by partition.

    Raises:
        ReplayError: if Kafka does not answer, or records of the ledger's beginning are gone.
    """
    for partition, low in ledger.low.items():
        if low > 0:
            raise ReplayError(f"{ledger.topic}[{partition}]: the records before offset {low} are gone")
    for record in reader.read(ledger):
        try:
            event = read_ledger(record)
        except InvalidRecordError:
            # The worker passed it over too, and kept it in the dead letters.
            continue
        if cell in (None, event.envelope.event.cell):
            yield event


def decision_records(
    reader: KafkaReader, decisions: TopicSlice, cell: str | None
) -> Iterator[DecisionRecord]:
    """The decisions of one cell, or of all, as they lie there.

    Raises:
        ReplayError: if Kafka does not answer.
    """
    key = None if cell is None else cell.encode()
    for record in reader.read(decisions):
        if key in (None, record.key):
            place = f"{record.topic}[{record.partition}]@{record.offset}"
            yield DecisionRecord(record.value or b"", place)
