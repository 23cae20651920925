"""The producer of every service and command."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from schemas.kafka_connection import KafkaConnection
from streams.kafka.configuration import producer
from streams.kafka.faults import fatal_errors_raised
from streams.kafka.records import SentRecord

_BY_KEY = -1
"""librdkafka's value for a partition by the partitioner's choice."""


class DeliveryFault(NamedTuple):
    """Reason why a record was not delivered."""

    topic: str
    error: KafkaError


class ConfirmedProducer:
    """Sends records; each is confirmed by the broker, or its fault is reported.

    Retries neither lose nor repeat a record, and each partition keeps its order. Several threads may use it.
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
            delivery_timeout_s: longest time until a record is confirmed, outages of the broker included.
            log: the client's log.
            settings: further settings of librdkafka, with `_` in place of `.`; `linger_ms` is 5 by default.
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
        """Fault of the first undelivered record that was sent without `on_delivery`."""

    def send(self, record: SentRecord, on_delivery: Callable[[Any, Any], None] | None = None) -> None:
        """Queue a record.

        Args:
            on_delivery: called with an error or None, and the message, once its delivery has ended.

        Raises:
            KafkaException: the record cannot be queued.
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
        """Process the broker's answers, after waiting for the first of them for at most `timeout_s`.

        Raises:
            KafkaException: the broker refuses this producer.
        """
        with fatal_errors_raised():
            self._producer.poll(timeout_s)

    def flush(self, timeout_s: float) -> int:
        """Wait until the broker has confirmed every record; return the number of records not confirmed in
        time.

        Raises:
            KafkaException: the broker refuses this producer.
        """
        with fatal_errors_raised():
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
