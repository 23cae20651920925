"""A broker in this process, for a worker's pipeline without Kafka."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable

from schemas.codec import Envelope
from schemas.registry import EVENTS_BY_TOPIC, TOPIC_BY_EVENT
from schemas.topics import CLOCK, FLEET, LEDGER, dead_letter_name, topic_name
from streams.kafka.records import Partition, ReadRecord, SentRecord
from streams.worker.flow import Clients
from streams.worker.intake import Intake, IntakeTopic
from streams.worker.pipeline import Pipeline
from streams.worker.settings import WorkerSettings

PREFIX = "t"
LEDGER_TOPIC = topic_name(PREFIX, LEDGER)
_PAUSE_S = 0.001


class Broker:
    """Takes records and delivers those of input topics and the ledger; all are in partition 0."""

    def __init__(self) -> None:
        self.sent: dict[str, list[SentRecord]] = defaultdict(list)
        """By topic, in the order of their offsets."""
        self.acknowledged: dict[str, int] = {}
        """The last offset of each topic that was acknowledged."""
        self.paused: set[Partition] = set()
        self.behind: list[Partition] = []
        self.topic = topic_name(PREFIX, "snapshots")
        self.data: dict[bytes, bytes] = {}
        self.records: list[ReadRecord] = []
        """Records of the input topics."""
        self._closed = False

    def put(self, envelope: Envelope, value: bytes | None = None) -> None:
        """Append an event to its input topic; `value` replaces its canonical JSON."""
        topic = topic_name(PREFIX, TOPIC_BY_EVENT[type(envelope.event)])
        offset = sum(record.topic == topic for record in self.records)
        self.records.append(
            ReadRecord(
                topic,
                0,
                offset,
                int(time.time() * 1_000),
                envelope.event.cell.encode(),
                value or envelope.value,
                tuple(envelope.headers()),
                is_broker_time=True,
            )
        )

    def close(self) -> None:
        """End the streams of records once they are delivered."""
        self._closed = True

    async def inputs(self) -> AsyncIterator[ReadRecord]:
        delivered = 0
        while delivered < len(self.records) or not self._closed:
            for record in self.records[delivered:]:
                delivered += 1
                yield record
            await asyncio.sleep(_PAUSE_S)

    async def ledger(self) -> AsyncIterator[ReadRecord]:
        delivered = 0
        while delivered < len(self.sent[LEDGER_TOPIC]) or not self._closed:
            for sent in self.sent[LEDGER_TOPIC][delivered:]:
                # Bytes of their own, as a client has them.
                value = None if sent.value is None else bytes(bytearray(sent.value))
                yield ReadRecord(LEDGER_TOPIC, 0, delivered, None, sent.key, value, tuple(sent.headers))
                delivered += 1
            await asyncio.sleep(_PAUSE_S)

    # The publisher

    async def send(self, record: SentRecord) -> asyncio.Future[int]:
        confirmation: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        confirmation.set_result(len(self.sent[record.topic]))
        self.sent[record.topic].append(record)
        return confirmation

    async def settle_regularly(self) -> None:
        await asyncio.Event().wait()

    # The consumer

    def assignment(self) -> Iterable[Partition]:
        return {
            Partition(LEDGER_TOPIC, 0),
            *(Partition(topic_name(PREFIX, name), 0) for name in EVENTS_BY_TOPIC),
        }

    def acknowledge(self, place: Partition, offset: int) -> None:
        assert offset > self.acknowledged.get(place.topic, -1)
        self.acknowledged[place.topic] = offset

    def read_until_s(self, place: Partition, last_offset: int) -> float | None:
        ends = len(self.sent[LEDGER_TOPIC]) if place.topic == LEDGER_TOPIC else 0
        return time.time() if last_offset + 1 >= ends else None

    def backlogged(self) -> Iterable[Partition]:
        return self.behind

    def pause_partitions(self, places: Iterable[Partition]) -> None:
        self.paused.update(places)

    def resume_partitions(self, places: Iterable[Partition]) -> None:
        self.paused.difference_update(places)


def pipeline(broker: Broker, cell: str, settings: WorkerSettings) -> Pipeline:
    """A worker's pipeline between the topics of a broker."""

    async def at_once(_configuration: object) -> None:
        """No cell waits."""

    inputs = {
        topic_name(PREFIX, name): IntakeTopic(
            events, dead_letter_name(topic_name(PREFIX, name)), in_own_partition=name in (FLEET, CLOCK)
        )
        for name, events in EVENTS_BY_TOPIC.items()
    }
    intake = Intake(inputs, LEDGER_TOPIC, frozenset({cell}), settings.max_tick_ahead_s, partitions=1)
    return Pipeline(settings, intake, Clients(broker, broker, broker), at_once)


async def run(made: Pipeline, broker: Broker, is_done: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Run a pipeline until a condition holds.

    Raises:
        TimeoutError: it does not hold in time.
        Exception: what the pipeline raises.
    """
    reading = [made.read_inputs(broker.inputs()), made.read_ledger(broker.ledger())]
    tasks = [asyncio.create_task(work) for work in (*reading, *made.tasks())]
    try:
        async with asyncio.timeout(timeout_s):
            while not is_done():
                for task in tasks:
                    if task.done():
                        await task
                await asyncio.sleep(_PAUSE_S)
    finally:
        broker.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
