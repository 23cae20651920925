"""Faust's Kafka transport, made exact: nothing is repeated by retries, nothing lost while partitions move."""

from collections.abc import Mapping
from typing import Any, ClassVar

from aiokafka import TopicPartition
from faust.transport.drivers.aiokafka import Consumer, Producer, Transport
from faust.types.tuples import Message


class ExactProducer(Producer):
    """An idempotent producer: Faust makes its own so inside transactions only."""

    def _settings_extra(self) -> Mapping[str, Any]:
        return {"enable_idempotence": True}


class ExactConsumer(Consumer):
    """A consumer that acknowledges what it is told to, and begins where that ends."""

    def ack(self, message: Message) -> bool:  # noqa: ARG002 -- Faust's signature
        """Do nothing: this is called by Faust's streams alone.

        While partitions move, they pass over events and, where Faust's compiled extension is not installed,
        acknowledge them all the same, even in a stream without automatic acknowledgement. Their offsets
        would be committed with those before them, and the events never be seen again.
        """
        return False

    def acknowledge(self, message: Message) -> None:
        """Let the group's offset pass `message`, once all before it are acknowledged too."""
        super().ack(message)

    async def perform_seek(self) -> None:
        """Go back to the group's offsets, and to the beginning of each partition that has none yet.

        Faust leaves the latter where reading stopped, and what had been fetched and dropped while partitions
        moved would never be read again.
        """
        await super().perform_seek()
        unread = [
            TopicPartition(tp.topic, tp.partition)
            for tp in self.assignment()
            if not self._read_offset[tp] and not self._is_changelog_tp(tp)
        ]
        if unread:
            await self._thread.seek_to_beginning(*unread)


class ExactTransport(Transport):
    """The transport with both."""

    Producer: ClassVar[Any] = ExactProducer
    Consumer: ClassVar[Any] = ExactConsumer
