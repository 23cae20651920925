"""The producer of every service and command."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from schemas.kafka_connection import KafkaConnection
from streams.kafka.configuration import producer
from streams.kafka.faults import fatal_errors_told
from streams.kafka.records import SentRecord

_BY_KEY = -1
"""librdkafka's value for a partition that its partitioner chooses."""


class DeliveryFault(NamedTuple):
    """Reason why the broker does not have a record."""

    topic: str
    error: KafkaError


class ConfirmedProducer:
    """Sends records; each is confirmed by the broker, or its fault is known.

    No record is lost or repeated by a retry, and each partition keeps its order. Several threads may use it.
    """

    def __init__(
        self,
        kafka: KafkaConnection,
        client_id: str,
        delivery_timeout_s: float,
        log: logging.Logger,
        **settings: Any,
    ) -> None:
        """Connect lazily.

        Args:
            delivery_timeout_s: for a record to be confirmed, the time without a broker included.
            log: of the client.
            settings: further ones of librdkafka, with `_` in place of `.`; `linger_ms` is 5 by default.
        """
        linger_ms = settings.pop("linger_ms", 5)
        self._producer = Producer(
            {
                **producer(kafka, client_id, delivery_timeout_s=delivery_timeout_s, linger_ms=linger_ms),
                **{name.replace("_", "."): value for name, value in settings.items()},
            },
            logger=log,
        )
        self.fault: DeliveryFault | None = None
        """The first record that the broker has not taken, of those sent without `on_delivery`."""

    def send(self, record: SentRecord, on_delivery: Callable[[Any, Any], None] | None = None) -> None:
        """Queue a record.

        Args:
            on_delivery: takes an error, which may be None, and the message once its delivery has ended.

        Raises:
            KafkaException: it cannot be queued.
            BufferError: the queue is full.
        """
        self._producer.produce(
            record.topic,
            key=record.key,
            value=record.value,
            headers=[*record.headers],
            partition=_BY_KEY if record.partition is None else record.partition,
            on_delivery=on_delivery or self._note,
        )

    def serve(self, timeout_s: float = 0.0) -> None:
        """Take the answers of the broker, and wait for the first of them.

        Raises:
            KafkaException: the broker refuses this producer altogether.
        """
        with fatal_errors_told():
            self._producer.poll(timeout_s)

    def flush(self, timeout_s: float) -> int:
        """Wait until the broker has confirmed every record; return how many are not confirmed in time.

        Raises:
            KafkaException: the broker refuses this producer altogether.
        """
        with fatal_errors_told():
            self._producer.flush(timeout_s)
        # `flush` also counts the client's errors, which are served here.
        self.serve()
        return self.unconfirmed

    @property
    def unconfirmed(self) -> int:
        """Number of records whose delivery has not ended."""
        return len(self._producer)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.fault = self.fault or DeliveryFault(str(message.topic()), error)
