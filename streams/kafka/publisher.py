"""Sending without waiting: each record returns the broker's confirmation, to be awaited later."""

import asyncio
import contextlib
import logging
from functools import partial
from typing import Any

from confluent_kafka import KafkaException

from schemas.kafka_connection import KafkaConnection
from streams.kafka.producer import ConfirmedProducer
from streams.kafka.records import SentRecord

Confirmation = asyncio.Future[int]
"""The offset that the broker gave the record."""

_POLL_EVERY_S = 0.005
"""How often the broker's answers are looked at; nothing is decided on them in a hurry."""
_LINGER_MS = 1
"""How long librdkafka waits for company of a record: without it, its thread sends nearly each by itself."""
_LONGEST_BATCH_S = 0.006
"""Longest time for which records that are sent without a pause are collected: a little more than a turn of
`streams/worker/faust/transport.py`."""
_MAX_BATCH_BYTES = 1024 * 1024


class Publisher:
    """Sends through librdkafka, whose own thread does the work while events are folded.

    Nothing is repeated by retries, and records keep their order in each partition. What is sent in one turn
    of the event loop is handed over together: waking that thread and a request to the broker cost as much as
    folding a small event, whether they are for one record or for many. A record that is handed over waits
    a millisecond for others, no longer.
    """

    def __init__(self, kafka: KafkaConnection, max_record_bytes: int, delivery_timeout_s: float) -> None:
        self._producer = ConfirmedProducer(
            kafka,
            "millrace-worker",
            delivery_timeout_s,
            logging.getLogger(__name__),
            linger_ms=_LINGER_MS,
            message_max_bytes=max_record_bytes,
            batch_size=min(max_record_bytes, _MAX_BATCH_BYTES),
        )
        self._batch: list[tuple[SentRecord, Confirmation]] = []
        """Not handed over yet."""
        self._batch_since_s = 0.0
        self._is_full = False

    async def send(self, record: SentRecord) -> Confirmation:
        """Queue a record; waits only while the producer's buffer is full.

        The confirmation raises KafkaException if the record cannot even be queued.
        """
        loop = asyncio.get_running_loop()
        if self._batch and loop.time() - self._batch_since_s > _LONGEST_BATCH_S:
            self._hand_over()
        while self._is_full:
            await asyncio.sleep(_POLL_EVERY_S)
        if not self._batch:
            self._batch_since_s = loop.time()
            loop.call_soon(self._hand_over)
        confirmation: Confirmation = loop.create_future()
        self._batch.append((record, confirmation))
        return confirmation

    def _hand_over(self) -> None:
        """Give librdkafka the batch, or what its buffer has room for."""
        taken = 0
        with contextlib.suppress(BufferError):
            for record, confirmation in self._batch:
                try:
                    self._producer.send(record, partial(_settle, confirmation))
                except KafkaException as error:
                    _settle(confirmation, error.args[0], None)
                taken += 1
        del self._batch[:taken]
        self._is_full = bool(self._batch)

    async def settle_regularly(self) -> None:
        """Settle the confirmations that have arrived and use the room they leave, again and again. Never
        returns.

        Raises:
            KafkaException: if nothing can be sent any more.
        """
        while True:
            self._producer.serve()
            if self._is_full:
                self._hand_over()
            await asyncio.sleep(_POLL_EVERY_S)


def _settle(confirmation: Confirmation, error: Any, message: Any) -> None:
    if confirmation.done():
        return
    if error is None:
        confirmation.set_result(message.offset())
    else:
        confirmation.set_exception(KafkaException(error))
