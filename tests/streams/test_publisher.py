"""Records wait, are ordered and are limited before the broker has them."""

import asyncio

import pytest
from confluent_kafka import KafkaException

from schemas.kafka_connection import KafkaConnection
from streams.kafka.publisher import Publisher
from streams.kafka.records import SentRecord

BUFFERED_RECORDS = 100_000
"""As many as librdkafka holds."""


def publisher() -> Publisher:
    """One whose broker is away."""
    return Publisher(KafkaConnection(bootstrap_servers="127.0.0.1:1"), 1_000, 60.0)


def test_unqueued_record_fails_by_its_own_confirmation() -> None:
    async def run() -> None:
        line = publisher()
        confirmations = [await line.send(SentRecord("t", None, bytes(size))) for size in (1, 5_000, 1)]
        with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
            await confirmations[1]
        assert [confirmation.done() for confirmation in confirmations] == [False, True, False]

    asyncio.run(run())


def test_whoever_sends_more_than_the_buffer_holds_waits() -> None:
    async def run() -> None:
        line, sent = publisher(), 0

        async def send() -> None:
            nonlocal sent
            while True:
                await line.send(SentRecord("t", None, b""))
                sent += 1

        sending = asyncio.create_task(send())
        while sent < BUFFERED_RECORDS:
            await asyncio.sleep(0)
        before = sent
        await asyncio.sleep(0.05)
        assert sent == before
        sending.cancel()

    asyncio.run(run())
