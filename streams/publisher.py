"""Sending without waiting: each record yields the broker's confirmation, to be awaited later."""

from collections.abc import Awaitable

from faust.types.transports import ProducerT
from faust.types.tuples import RecordMetadata

from streams.records import SentRecord

Confirmation = Awaitable[RecordMetadata]


class Publisher:
    """Sends through Faust's producer, which keeps the order of the records of each partition."""

    def __init__(self, producer: ProducerT) -> None:
        self._producer = producer

    async def send(self, record: SentRecord) -> Confirmation:
        """Queue a record; waits only while the producer's buffer is full.

        Raises:
            ProducerSendError: if the record cannot even be queued.
        """
        return await self._producer.send(
            record.topic, record.key, record.value, record.partition, None, record.headers
        )
