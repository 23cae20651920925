"""The flow of events through a worker: their order, their number in flight, and their acknowledgement.

An input record passes these steps, in this order; each is a method of `Flow`.

1. `read`: it is read from its input topic. If intake refuses it, `refuse` sends it to the dead letters.
2. `wait`: its event is queued by its time and its writer (`intake_queue`).
3. `next`: its turn comes once the backlog of its cell has room (`LedgerBacklog`).
4. `send`: it is sent to the ledger.
5. `acknowledge_confirmed`: the broker confirms it. The input record is acknowledged.
6. `written`: it is read from the ledger, and not parsed again.
7. `folded`: its cell has decided, and the decisions are sent.
8. `secured`: the broker has confirmed the decisions and a snapshot. The ledger record is acknowledged.

`IntakeProcessor` does the steps 1 to 4, and `CellProcessor` 6 to 8.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from schemas.base import Event
from schemas.clock import ClockTicked
from streams.kafka.publisher import Confirmation, Publisher
from streams.kafka.records import Partition, ReadRecord, SentRecord
from streams.worker.cells import Cells, SnapshotTable
from streams.worker.intake import Accepted, Claim, Intake
from streams.worker.intake_queue import LONGEST_FOLDING_S, IntakeQueue, LedgerBacklog, RecordTimes, Waiting

_TICK_CHECK_S = 0.1
"""Time after which it is checked again whether a tick may enter the ledger."""
_BEHIND_S = 0.02
"""Longest time to fold the events in flight while many records are left to read: reading precedes deciding,
since fairness can only consider events that were read."""


class Consumer(Protocol):
    """The consumer of the input topics and the ledger."""

    def assignment(self) -> Iterable[Partition]:
        """Return the partitions that are assigned to this worker."""

    def acknowledge(self, place: Partition, offset: int) -> None:
        """Acknowledge a record and all before it in its partition."""

    def read_until_s(self, place: Partition, last_offset: int) -> float | None:
        """Return the Unix time up to which a partition is read.

        `last_offset` is that of the last record read from it, or -1. None while records are in flight, or if
        the partition is not assigned.
        """

    def backlogged(self) -> Iterable[Partition]:
        """Return the partitions with many records left at the last fetch."""

    def pause_partitions(self, places: Iterable[Partition]) -> None: ...

    def resume_partitions(self, places: Iterable[Partition]) -> None: ...


@dataclass(frozen=True)
class Clients:
    """Connections of a worker to Kafka."""

    consumer: Consumer
    publisher: Publisher
    snapshots: SnapshotTable


@dataclass(frozen=True)
class Clocks:
    """The two clocks of a worker."""

    unix_s: Callable[[], float]
    monotonic_s: Callable[[], float]


@dataclass(frozen=True)
class Limits:
    """Bounds of a flow."""

    writer_events_per_s: float
    """Rate above which the events of a writer are delayed."""
    waiting_bytes: int
    """Size of the queue above which the partition with most of its events is not read."""
    unconfirmed: int
    """Most records that are sent and not confirmed."""


class _Acknowledgements:
    """Acknowledges records in the order of their offsets; they are done in any order."""

    def __init__(self, acknowledge: Callable[[Partition, int], None]) -> None:
        self._acknowledge = acknowledge
        self._open: dict[Partition, OrderedDict[int, bool]] = {}
        self.last: dict[Partition, int] = {}
        """The last offset read, by partition."""

    def read(self, place: Partition, offset: int) -> bool:
        """Note a record that was read; return False if it was read before."""
        if offset <= self.last.get(place, -1):
            return False
        self.last[place] = offset
        self._open.setdefault(place, OrderedDict())[offset] = False
        return True

    def done(self, place: Partition, offset: int) -> None:
        """Note that a record is done: the broker has confirmed its result, or it has none."""
        records = self._open.get(place)
        if records is None or offset not in records:
            return  # of an earlier assignment
        records[offset] = True
        last = -1
        while records and records[first := next(iter(records))]:
            del records[first]
            last = first
        if last >= 0:
            self._acknowledge(place, last)

    def fullest(self) -> Partition | None:
        """Return the partition with most records that are not done."""
        return max(self._open, key=lambda place: len(self._open[place]), default=None)

    def forget(self) -> None:
        self._open.clear()
        self.last.clear()


class Flow:
    """Order, room and acknowledgement of all events of a worker."""

    def __init__(
        self, intake: Intake, cells: Cells, clients: Clients, limits: Limits, clocks: Clocks
    ) -> None:
        """Begin without events."""
        self.intake = intake
        self.clocks = clocks
        self._cells = cells
        self._consumer = consumer = clients.consumer
        self._publisher = clients.publisher
        self._limits = limits
        self._times = RecordTimes()
        self._queue = IntakeQueue(1 / limits.writer_events_per_s)
        self._backlog = LedgerBacklog(
            clocks.monotonic_s, lambda partition: Partition(intake.ledger, partition) in consumer.assignment()
        )
        self._acknowledgements = _Acknowledgements(consumer.acknowledge)
        self._unconfirmed: asyncio.Queue[tuple[Waiting | ReadRecord, Confirmation]] = asyncio.Queue(
            limits.unconfirmed
        )
        self._events: dict[bytes, Event] = {}
        """Events in flight to cells of this worker, by their canonical JSON."""
        self._paused: set[Partition] = set()
        self._is_stopping = False
        self._changed = asyncio.Event()
        """Set when an event is queued, or a backlog may have room."""
        self.held: set[int] = set()
        """Ledger partitions of this worker to which nothing may be sent, as their rules are about to
        change."""

    # The steps

    def read(self, record: ReadRecord) -> bool:
        """Note a record that was read from an input topic; return False if it was read before."""
        return self._acknowledgements.read(record.place, record.offset)

    def is_behind(self) -> bool:
        """Return whether many records of the input topics are left to read."""
        return any(place.topic in self.intake.inputs for place in self._consumer.backlogged())

    async def refuse(self, record: ReadRecord, letter: SentRecord) -> None:
        await self._unconfirmed.put((record, await self._publisher.send(letter)))

    def done(self, record: ReadRecord) -> None:
        """Acknowledge an input record for which nothing is sent."""
        self._acknowledgements.done(record.place, record.offset)

    def wait(self, claim: Claim, source: ReadRecord | None, accepted: Accepted | None) -> None:
        """Queue an event.

        Args:
            source: its input record; None for an event that the worker adds.
            accepted: the event; None if it is validated when its turn comes.
        """
        unix_s = self.clocks.unix_s()
        self._queue.put(
            Waiting(
                claim.cell,
                claim.writer,
                unix_s if source is None else self._times.of(source.place, source.timestamp_ms, unix_s),
                self.clocks.monotonic_s(),
                source,
                accepted,
                is_tick=claim.type is ClockTicked,
                is_report=claim.node is not None,
            )
        )
        self._changed.set()
        if self._queue.size_bytes > self._limits.waiting_bytes:
            self._pause_reading()

    async def next(self, may_tick: Callable[[Waiting], bool]) -> Waiting:
        """Return the next event, as soon as the backlog of its cell has room.

        Args:
            may_tick: whether a tick may enter the ledger now.
        """
        while True:
            waiting = self._queue.pop(self.clocks.monotonic_s(), may_tick, self._has_room)
            self._resume_reading()
            if waiting is not None:
                return waiting
            self._changed.clear()
            # `wait_for` would create a task each time.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_CHECK_S):
                    await self._changed.wait()

    async def send(self, waiting: Waiting, accepted: Accepted) -> None:
        record, partition = accepted.record, self.intake.partition_of(waiting.cell)
        self._backlog.sent(partition)
        if record.value is not None and self._backlog.is_ours(partition):
            self._events[record.value] = accepted.event
        await self._unconfirmed.put((waiting, await self._publisher.send(record)))

    async def acknowledge_confirmed(self) -> None:
        """Acknowledge each input record once the broker has its ledger record or dead letter. Never returns.

        Raises:
            KafkaException: the broker does not confirm a record.
        """
        while True:
            source, confirmation = await self._unconfirmed.get()
            offset = await confirmation
            record = source.source if isinstance(source, Waiting) else source
            if isinstance(source, Waiting):
                self._backlog.confirmed(self.intake.partition_of(source.cell), offset, source)
                self._changed.set()
            if record is not None:
                self.done(record)
            self._unconfirmed.task_done()

    def written(self, record: ReadRecord) -> Event | None:
        """Return the event of a ledger record, if this worker wrote it; None otherwise."""
        return self._events.pop(record.value or b"", None)

    def folded(self, record: ReadRecord, fold_s: float) -> None:
        """Note that a cell has decided on a ledger record, and the duration."""
        waiting = self._backlog.folded(record.partition, record.offset, fold_s)
        if waiting is not None:
            self._queue.charge(waiting, fold_s)
        self._changed.set()

    def secured(self, last_offsets: Mapping[Partition, int]) -> None:
        """Acknowledge the ledger up to these records: their decisions and snapshots are confirmed."""
        for place, offset in last_offsets.items():
            self._consumer.acknowledge(place, offset)

    # Queries

    def read_until_s(self, place: Partition) -> float | None:
        """Return the Unix time up to which an input partition is read; see `Consumer`."""
        return self._consumer.read_until_s(place, self._acknowledgements.last.get(place, -1))

    def is_folded(self, partition: int) -> bool:
        """Return whether a ledger partition is assigned to this worker and folded to its end."""
        place = Partition(self.intake.ledger, partition)
        return self._consumer.read_until_s(place, self._cells.last_offset(partition)) is not None

    def is_empty(self) -> bool:
        """Return whether all ledger partitions of this worker are folded to their ends."""
        mine = [place.partition for place in self._consumer.assignment() if place.topic == self.intake.ledger]
        return self._backlog.is_empty() and all(map(self.is_folded, mine))

    # Its end, and the end of an assignment

    async def stop(self) -> None:
        """Send no more events to the ledger, and wait until the broker has confirmed all that were sent."""
        self._is_stopping = True
        await self.flush()

    async def flush(self) -> None:
        """Wait until all sent records are confirmed and acknowledged; queued ones are discarded,
        unacknowledged."""
        self._queue.clear()
        await self._unconfirmed.join()

    def release(self) -> None:
        """Forget queued events: partitions are reassigned, and unacknowledged records are read again."""
        self._queue.clear()
        self._backlog.forget()
        self._acknowledgements.forget()
        self._times.forget()
        self._events.clear()
        self._paused.clear()
        self.held.clear()

    def _has_room(self, cell: str) -> bool:
        partition = self.intake.partition_of(cell)
        if self._is_stopping or (self._backlog.is_ours(partition) and self._is_held(partition, cell)):
            return False
        return self._backlog.has_room(partition, _BEHIND_S if self.is_behind() else LONGEST_FOLDING_S)

    def _is_held(self, partition: int, name: str) -> bool:
        cell = self._cells.cell(name)
        return partition in self.held or (cell is not None and cell.awaits_rules)

    def _pause_reading(self) -> None:
        """Pause the partition with most queued events."""
        fullest = self._acknowledgements.fullest()
        if fullest is not None and fullest not in self._paused:
            self._paused.add(fullest)
            self._consumer.pause_partitions([fullest])

    def _resume_reading(self) -> None:
        if self._paused and self._queue.size_bytes < self._limits.waiting_bytes / 2:
            self._consumer.resume_partitions(self._paused)
            self._paused.clear()
