"""Sending events to their input topics."""

import time
import uuid
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from infra.log.target import Target
from schemas.codec import Envelope
from schemas.registry import TOPIC_BY_EVENT, Event
from streams.times import rfc3339

DELIVERY_TIMEOUT_S = 30.0


class PublishError(RuntimeError):
    """The broker has not taken an event. The message is one line."""


class EventPublisher:
    """An idempotent producer of events, keyed by cell, with CloudEvents headers.

    Leaving the block waits for the broker to confirm all that was sent.
    """

    def __init__(self, target: Target, source: str) -> None:
        """Connect. `source` is the CloudEvents source of the events: who sends them."""
        self._target = target
        self._source = source
        self._fault: KafkaError | None = None
        self._producer = Producer(
            {
                "bootstrap.servers": target.bootstrap_servers,
                "client.id": f"millrace-{source}".replace("/", "-"),
                "enable.idempotence": True,
                "acks": "all",
                # As Java's clients and the worker place keys, so that one cell's events keep their order.
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "delivery.timeout.ms": int(DELIVERY_TIMEOUT_S * 1_000),
                "log_level": 0,
            }
        )

    def publish(self, event: Event) -> Envelope:
        """Send an event and return it with its new id; `flush` waits for the broker.

        Raises:
            PublishError: the broker refused an earlier event, or this one cannot be queued.
        """
        now = rfc3339(int(time.time() * 1_000))
        envelope = Envelope(str(uuid.uuid4()), self._source, now, event)
        try:
            self._producer.produce(
                self._target.topic(TOPIC_BY_EVENT[type(event)]),
                key=event.cell.encode(),
                value=envelope.value,
                headers=list(envelope.headers()),
                on_delivery=self._note,
            )
        except (KafkaException, BufferError) as error:
            raise PublishError(f"cannot send {event.TYPE}: {error}") from None
        self._producer.poll(0)
        self._raise_fault()
        return envelope

    def flush(self) -> None:
        """Wait until the broker has confirmed everything.

        Raises:
            PublishError: it has not.
        """
        left = self._producer.flush(DELIVERY_TIMEOUT_S)
        self._raise_fault()
        if left:
            raise PublishError(f"{self._target.bootstrap_servers} has not confirmed {left} events in time")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.flush()

    def _note(self, fault: KafkaError | None, _: Message) -> None:
        self._fault = self._fault or fault

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise PublishError(
                f"{self._target.bootstrap_servers} refused an event: {self._fault.str()}"
            ) from None
