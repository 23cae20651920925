"""Faust's Kafka transport, made exact: retries repeat nothing, and nothing is acknowledged by itself."""

from collections.abc import Mapping
from typing import Any, ClassVar

from faust.transport.drivers.aiokafka import Consumer, Producer, Transport
from faust.types.tuples import Message


class ExactProducer(Producer):
    """An idempotent producer: Faust makes its own so inside transactions only."""

    def _settings_extra(self) -> Mapping[str, Any]:
        return {"enable_idempotence": True}


class ExactConsumer(Consumer):
    """A consumer that acknowledges only what it is told to.

    While partitions move, Faust's streams pass over events and, where its compiled extension is not
    installed, acknowledge them all the same, even in a stream without automatic acknowledgement. Their
    offsets would be committed with those before them, and the events never be seen again.
    """

    def ack(self, message: Message) -> bool:  # noqa: ARG002 -- Faust's signature
        """Do nothing: called by Faust's streams, never by a processor."""
        return False

    def acknowledge(self, message: Message) -> None:
        """Let the group's offset pass `message`, once all before it are acknowledged too."""
        super().ack(message)


class ExactTransport(Transport):
    """The transport with both."""

    Producer: ClassVar[Any] = ExactProducer
    Consumer: ClassVar[Any] = ExactConsumer
