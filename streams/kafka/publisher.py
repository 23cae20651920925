"""Sending without waiting: each record yields the broker's confirmation, to be awaited later."""

import asyncio
import logging
from functools import partial
from typing import Any

from confluent_kafka import KafkaException, Producer

from schemas.kafka_connection import KafkaConnection
from streams.kafka.configuration import producer
from streams.kafka.faults import fatal_errors_told
from streams.kafka.records import SentRecord, produce

Confirmation = asyncio.Future[int]
"""The offset that the broker gave the record."""

_POLL_EVERY_S = 0.005
"""How often the broker's answers are looked at; nothing is decided on them in a hurry."""
_LINGER_MS = 2
"""How long a batch waits for company: a request to the broker costs as much as folding a small event."""
_MAX_BATCH_BYTES = 1024 * 1024


class Publisher:
    """Sends through librdkafka, whose own thread does the work while events are folded.

    Nothing is repeated by retries, and records keep their order in each partition.
    """

    def __init__(self, kafka: KafkaConnection, max_record_bytes: int, delivery_timeout_s: float) -> None:
        self._producer = Producer(
            {
                **producer(
                    kafka, "millrace-worker", delivery_timeout_s=delivery_timeout_s, linger_ms=_LINGER_MS
                ),
                "message.max.bytes": max_record_bytes,
                "batch.size": min(max_record_bytes, _MAX_BATCH_BYTES),
            },
            logger=logging.getLogger(__name__),
        )

    async def send(self, record: SentRecord) -> Confirmation:
        """Queue a record; waits only while the producer's buffer is full.

        Raises:
            KafkaException: if the record cannot even be queued.
        """
        confirmation: Confirmation = asyncio.get_running_loop().create_future()
        while True:
            try:
                produce(self._producer, record, partial(_settle, confirmation))
            except BufferError:
                await asyncio.sleep(_POLL_EVERY_S)
            else:
                return confirmation

    async def settle_regularly(self) -> None:
        """Settle the confirmations that have arrived, again and again. Never returns.

        Raises:
            KafkaException: if nothing can be sent any more.
        """
        while True:
            with fatal_errors_told():
                self._producer.poll(0)
            await asyncio.sleep(_POLL_EVERY_S)


def _settle(confirmation: Confirmation, error: Any, message: Any) -> None:
    if confirmation.done():
        return
    if error is None:
        confirmation.set_result(message.offset())
    else:
        confirmation.set_exception(KafkaException(error))
