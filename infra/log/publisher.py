"""Sending events to their input topics."""

import logging
import time
import uuid
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, KafkaException

from infra.log.target import ANSWER_TIMEOUT_S, Target
from schemas.base import Event
from schemas.codec import Envelope, rfc3339
from schemas.errors import ReadableError
from schemas.registry import TOPIC_BY_EVENT
from streams.kafka.administration import Administration
from streams.kafka.faults import denial
from streams.kafka.producer import ConfirmedProducer
from streams.kafka.records import SentRecord

DELIVERY_TIMEOUT_S = 30.0
_SILENT = logging.Logger("silent", logging.CRITICAL + 1)
"""Logger that drops the client's own lines: its errors are raised."""


class PublishError(ReadableError):
    """An event that the broker has not confirmed. The message is one line."""


class EventPublisher:
    """An idempotent producer of events, keyed by cell, with CloudEvents headers.

    Leaving the block waits for the broker to confirm all that was sent.
    """

    def __init__(self, target: Target, source: str) -> None:
        """Connect. `source` is the CloudEvents source of the events, which names their sender."""
        self._target = target
        self._source = source
        self._may_write: set[str] = set()
        client_id = f"millrace-{source}".replace("/", "-")
        self._producer = ConfirmedProducer(target.kafka, client_id, DELIVERY_TIMEOUT_S, _SILENT)

    def publish(self, event: Event, event_id: str | None = None) -> Envelope:
        """Send an event and return it; `flush` waits for the broker.

        Args:
            event: The event.
            event_id: Its CloudEvents id; by default a new one.

        Raises:
            BrokerError: the topic is missing, or the permission to write to it is.
            PublishError: the broker refused an earlier event, or this one cannot be queued.
        """
        now = rfc3339(int(time.time() * 1_000))
        envelope = Envelope(event_id or str(uuid.uuid4()), self._source, now, event)
        topic = self._target.topic(TOPIC_BY_EVENT[type(event)])
        self._require(topic)
        try:
            self._producer.send(SentRecord(topic, event.cell.encode(), envelope.value, envelope.headers()))
            self._producer.serve()
        except KafkaException as error:
            raise self._refused(error.args[0], f"topic {topic}") from None
        except BufferError as error:
            raise PublishError(f"cannot send {event.TYPE}: {error}") from None
        self._raise_fault()
        return envelope

    def flush(self) -> None:
        """Wait until the broker has confirmed everything.

        Raises:
            PublishError: the broker has not confirmed all events in time.
        """
        try:
            left = self._producer.flush(DELIVERY_TIMEOUT_S)
        except KafkaException as error:
            # The broker refuses the producer as a whole if it may write to no topic.
            raise self._refused(error.args[0], "any topic") from None
        self._raise_fault()
        if left:
            servers = self._target.kafka.bootstrap_servers
            raise PublishError(f"{servers} has not confirmed {left} events in time")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.flush()

    def _require(self, topic: str) -> None:
        """Check the permission before the first event to a topic: the producer's error does not name it."""
        if topic not in self._may_write:
            Administration(self._target.kafka, ANSWER_TIMEOUT_S).require({topic: ["WRITE"]})
            self._may_write.add(topic)

    def _refused(self, fault: KafkaError, what: str) -> PublishError:
        kafka = self._target.kafka
        denied = denial(kafka, fault, f"write {what}")
        return PublishError(denied or f"{kafka.bootstrap_servers} refused an event: {fault.str()}")

    def _raise_fault(self) -> None:
        if self._producer.fault is not None:
            topic, error = self._producer.fault
            raise self._refused(error, f"topic {topic}")
