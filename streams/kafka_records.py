"""Between librdkafka's messages and plain records."""

from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from streams.records import ReadHeaders, ReadRecord, SentRecord

_BY_KEY = -1
"""librdkafka's word for a partition that its partitioner chooses."""


def read_record(message: Any, headers: ReadHeaders | None = None) -> ReadRecord:
    """The record behind a message without an error.

    Args:
        headers: those to take in place of the message's own, where the client may not be able to read them.
    """
    _, timestamp_ms = message.timestamp()
    return ReadRecord(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=timestamp_ms if timestamp_ms > 0 else None,
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()) if headers is None else headers,
    )


def produce(producer: Producer, record: SentRecord, on_delivery: Callable[[Any, Any], None]) -> None:
    """Queue a record.

    Raises:
        KafkaException: it cannot be queued.
        BufferError: the queue is full.
    """
    producer.produce(
        record.topic,
        key=record.key,
        value=record.value,
        headers=[*record.headers],
        partition=_BY_KEY if record.partition is None else record.partition,
        on_delivery=on_delivery,
    )
