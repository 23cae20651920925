"""The broker takes a snapshot of the largest state that a cell may have."""

import asyncio
import contextlib
import random

import pytest
from confluent_kafka import KafkaException

from infra.topics import ensure_topics
from schemas.cells import MAX_SNAPSHOT_BYTES
from schemas.topics import topics
from streams.cell.state_machine import compress
from streams.kafka.publisher import Publisher
from streams.kafka.records import SentRecord
from streams.worker.settings import LARGEST_RECORD_BYTES, WorkerSettings
from streams.worker.worker import prepare

RESERVED_BYTES = 2**17
"""Bytes of a cell's room that are left to compression and Kafka."""


def test_largest_snapshot_is_confirmed_and_larger_refused(kafka: str, topic_prefix: str) -> None:
    settings = WorkerSettings(bootstrap_servers=kafka, topic_prefix=topic_prefix)
    ensure_topics(settings, topics(topic_prefix, 1))
    name = f"{topic_prefix}.snapshots"
    prepare(settings, name, timeout_s=60)
    state = random.Random(1).randbytes(MAX_SNAPSHOT_BYTES - RESERVED_BYTES)

    async def send() -> None:
        publisher = Publisher(settings, LARGEST_RECORD_BYTES, 60.0)
        settling = asyncio.create_task(publisher.settle_regularly())
        largest = SentRecord(name, b"c" * 128, compress(state), partition=0)
        assert await (await publisher.send(largest)) == 0
        larger = SentRecord(name, b"c" * 128, compress(state + state[:RESERVED_BYTES]), partition=0)
        with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
            await (await publisher.send(larger))
        settling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await settling

    asyncio.run(send())
