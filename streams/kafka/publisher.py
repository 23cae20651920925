"""Sending of records without waiting: the confirmation of each can be awaited later."""

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
"""Future of the record's offset."""

_POLL_EVERY_S = 0.005
"""Interval between polls for the broker's answers, which are not urgent."""
_LINGER_MS = 1
"""Longest wait of librdkafka for further records of a batch. Without it, most batches would have one
record."""
_LONGEST_BATCH_S = 0.006
"""Longest time for which records are collected: slightly longer than a turn of
`streams/worker/faust/transport.py`."""
_MAX_BATCH_BYTES = 1024 * 1024


class Publisher:
    """Sends records through librdkafka, whose own thread does the work while events are folded.

    Retries repeat no record, and records keep their order in each partition. The records of one turn of the
    event loop are passed on together. Whether for one record or for many, waking that thread and a request to
    the broker take as long as folding a small event. A record that is handed over waits for others for a
    millisecond at most.
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
        """Records that are not handed over yet."""
        self._batch_since_s = 0.0
        self._is_full = False

    async def send(self, record: SentRecord) -> Confirmation:
        """Queue a record; wait only while the producer's buffer is full.

        The confirmation raises KafkaException also if the record cannot be queued.
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
        """Pass the batch to librdkafka, or the part that its buffer has room for."""
        sent = 0
        with contextlib.suppress(BufferError):
            for record, confirmation in self._batch:
                try:
                    self._producer.send(record, partial(_settle, confirmation))
                except KafkaException as error:
                    _settle(confirmation, error.args[0], None)
                sent += 1
        del self._batch[:sent]
        self._is_full = bool(self._batch)

    async def settle_regularly(self) -> None:
        """Settle arrived confirmations and send further records repeatedly. Never returns.

        Raises:
            KafkaException: no record can be sent any more.
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
