"""The Faust side of intake: input events flow on to the ledger and are acknowledged once they are there."""

import asyncio
from collections.abc import Callable

from faust.streams import Stream
from faust.types.tuples import Message

from streams.faust_records import read_record
from streams.intake import Intake
from streams.publisher import Confirmation, Publisher


class IntakeProcessor:
    """Pipelines: many records may be on their way to the broker, and each waits only for its own answer."""

    def __init__(
        self,
        intake: Intake,
        publisher: Publisher,
        acknowledge: Callable[[Message], None],
        buffer_events: int,
    ) -> None:
        self._intake = intake
        self._publisher = publisher
        self._acknowledge = acknowledge
        self._unconfirmed: asyncio.Queue[tuple[Message, Confirmation]] = asyncio.Queue(buffer_events)

    async def run(self, stream: Stream[bytes]) -> None:
        """Send every event of `stream` on, in order. Never returns."""
        async for event in stream.noack().events():
            sent = self._intake.admit(read_record(event.message))
            await self._unconfirmed.put((event.message, await self._publisher.send(sent)))

    async def acknowledge_confirmed(self) -> None:
        """Acknowledge each event once the broker has its ledger record or dead letter. Never returns.

        Raises:
            KafkaException: if the broker does not take a record.
        """
        while True:
            message, confirmation = await self._unconfirmed.get()
            await confirmation
            self._acknowledge(message)
            self._unconfirmed.task_done()

    async def flush(self) -> None:
        """Wait until everything that was read is acknowledged."""
        await self._unconfirmed.join()
