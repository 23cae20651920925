"""The flow of events through a worker: their order, the room on their way, and their acknowledgement.

An input record passes these steps, in this order; each is a method of `Flow`.

1. `read`: it was read from its input topic. If intake refuses it, `refuse` sends it to the dead letters.
2. `wait`: its event waits for its turn, which depends on its time and its writer (`intake_queue`).
3. `next`: its turn has come, and there is room on the way to its cell (`ledger_backlog`).
4. `send`: it is sent to the ledger.
5. `acknowledge_confirmed`: the broker has it. The input record is acknowledged.
6. `written`: it was read from the ledger, and is not parsed again.
7. `folded`: its cell has decided, and the decisions were sent.
8. `secured`: the broker has the decisions and a snapshot. The ledger record is acknowledged.

`IntakeProcessor` takes it through the steps 1 to 4, and `CellProcessor` through 6 to 8.
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
from streams.kafka.records import Place, ReadRecord, SentRecord
from streams.worker.cells import Cells, SnapshotTable
from streams.worker.intake import Accepted, Claim, Intake
from streams.worker.intake_queue import IntakeQueue, RecordTimes, Waiting
from streams.worker.ledger_backlog import LONGEST_S, LedgerBacklog

_LOOK_AGAIN_S = 0.1
"""Time after which it is checked again whether a tick may enter the ledger."""
_BEHIND_S = 0.02
"""While much is left to read, the events on their way to their cells may take no longer than this: reading
goes before deciding, since what is fair is known only of what has been read."""


class Consumer(Protocol):
    """The consumer of the input topics and the ledger."""

    def assignment(self) -> Iterable[Place]:
        """The partitions that are assigned to this worker."""

    def acknowledge(self, place: Place, offset: int) -> None:
        """This record and all before it in its partition are done."""

    def read_until_s(self, place: Place, last_offset: int) -> float | None:
        """The moment (Unix time) up to which a partition is read.

        `last_offset` is of the last record that was taken of it, or -1. None where records are on their way,
        or the partition is not assigned.
        """

    def deep(self) -> Iterable[Place]:
        """Partitions of which much was left to read when they were read last."""

    def pause_partitions(self, places: Iterable[Place]) -> None: ...

    def resume_partitions(self, places: Iterable[Place]) -> None: ...


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
    """A writer of more events than this is delayed."""
    waiting_bytes: int
    """While so much waits, the partition that most of it came from is not read."""
    unconfirmed: int
    """Records that may be on their way to the broker."""


class _Acknowledgements:
    """Records are done in any order, and acknowledged in that of their offsets."""

    def __init__(self, acknowledge: Callable[[Place, int], None]) -> None:
        self._acknowledge = acknowledge
        self._open: dict[Place, OrderedDict[int, bool]] = {}
        self.last: dict[Place, int] = {}
        """The last offset that was read of each partition."""

    def read(self, place: Place, offset: int) -> bool:
        """Note a record that was read; False if it was read before."""
        if offset <= self.last.get(place, -1):
            return False
        self.last[place] = offset
        self._open.setdefault(place, OrderedDict())[offset] = False
        return True

    def done(self, place: Place, offset: int) -> None:
        """Note that the broker has what became of a record, or that nothing has to."""
        records = self._open.get(place)
        if records is None or offset not in records:
            return  # of an assignment that is over
        records[offset] = True
        last = -1
        while records and records[first := next(iter(records))]:
            del records[first]
            last = first
        if last >= 0:
            self._acknowledge(place, last)

    def fullest(self) -> Place | None:
        """The partition of which most records are not done."""
        return max(self._open, key=lambda place: len(self._open[place]), default=None)

    def forget(self) -> None:
        self._open.clear()
        self.last.clear()


class Flow:
    """Order, room and acknowledgement of all events of a worker."""

    def __init__(
        self, intake: Intake, cells: Cells, clients: Clients, limits: Limits, clocks: Clocks
    ) -> None:
        """Begin with nothing on its way."""
        self.intake = intake
        self.clocks = clocks
        self._cells = cells
        self._consumer = consumer = clients.consumer
        self._publisher = clients.publisher
        self._limits = limits
        self._times = RecordTimes()
        self._queue = IntakeQueue(1 / limits.writer_events_per_s)
        self._backlog = LedgerBacklog(
            clocks.monotonic_s, lambda partition: Place(intake.ledger, partition) in consumer.assignment()
        )
        self._acknowledgements = _Acknowledgements(consumer.acknowledge)
        self._unconfirmed: asyncio.Queue[tuple[Waiting | ReadRecord, Confirmation]] = asyncio.Queue(
            limits.unconfirmed
        )
        self._events: dict[bytes, Event] = {}
        """Those on their way to cells of this worker, by their canonical JSON."""
        self._paused: set[Place] = set()
        self._is_stopping = False
        self._changed = asyncio.Event()
        """Something waits, or there is room for it."""
        self.held: set[int] = set()
        """Ledger partitions of this worker to which nothing may be sent: rules are about to change there."""

    # The steps

    def read(self, record: ReadRecord) -> bool:
        """Note a record that was read from an input topic; False if it was read before."""
        return self._acknowledgements.read(record.place, record.offset)

    def is_behind(self) -> bool:
        """Whether much is left to read of the input topics."""
        return any(place.topic in self.intake.inputs for place in self._consumer.deep())

    async def refuse(self, record: ReadRecord, letter: SentRecord) -> None:
        """Send the dead letter of an input record."""
        await self._unconfirmed.put((record, await self._publisher.send(letter)))

    def done(self, record: ReadRecord) -> None:
        """Acknowledge an input record of which nothing is sent."""
        self._acknowledgements.done(record.place, record.offset)

    def wait(self, claim: Claim, source: ReadRecord | None, accepted: Accepted | None) -> None:
        """Let an event wait for its turn.

        Args:
            source: its input record; None if the worker adds the event.
            accepted: the event; None if it is admitted when its turn comes.
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
        """The event whose turn it is, as soon as there is room for it.

        Args:
            may_tick: whether a tick may enter the ledger now.
        """
        while True:
            waiting = self._queue.take(self.clocks.monotonic_s(), may_tick, self._has_room)
            self._resume_reading()
            if waiting is not None:
                return waiting
            self._changed.clear()
            # `wait_for` would make a task each time.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await self._changed.wait()

    async def send(self, waiting: Waiting, accepted: Accepted) -> None:
        """Send an event to the ledger."""
        record, partition = accepted.record, self.intake.partition_of(waiting.cell)
        self._backlog.sent(partition)
        if record.value is not None and self._backlog.is_ours(partition):
            self._events[record.value] = accepted.event
        await self._unconfirmed.put((waiting, await self._publisher.send(record)))

    async def acknowledge_confirmed(self) -> None:
        """Acknowledge each input record once the broker has its ledger record or dead letter. Never returns.

        Raises:
            KafkaException: if the broker does not take a record.
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
        """The event of a ledger record, if this worker has just written it."""
        return self._events.pop(record.value or b"", None)

    def folded(self, record: ReadRecord, fold_s: float) -> None:
        """Note that a cell has decided about a ledger record, and how long that took."""
        waiting = self._backlog.folded(record.partition, record.offset, fold_s)
        if waiting is not None:
            self._queue.charge(waiting, fold_s)
        self._changed.set()

    def secured(self, last_offsets: Mapping[Place, int]) -> None:
        """Acknowledge the ledger up to these records: their decisions and snapshots are confirmed."""
        for place, offset in last_offsets.items():
            self._consumer.acknowledge(place, offset)

    # Queries

    def read_until_s(self, place: Place) -> float | None:
        """The moment (Unix time) up to which an input partition is read; see `Consumer`."""
        return self._consumer.read_until_s(place, self._acknowledgements.last.get(place, -1))

    def is_folded(self, partition: int) -> bool:
        """Whether a ledger partition is this worker's, and everything that the broker has of it is folded."""
        place = Place(self.intake.ledger, partition)
        return self._consumer.read_until_s(place, self._cells.last_offset(partition)) is not None

    def is_empty(self) -> bool:
        """Whether all that the ledger has for this worker is folded."""
        mine = [place.partition for place in self._consumer.assignment() if place.topic == self.intake.ledger]
        return self._backlog.is_empty() and all(map(self.is_folded, mine))

    # Its end, and the end of an assignment

    async def stop(self) -> None:
        """Send nothing more to the ledger, and wait until the broker has confirmed what was sent."""
        self._is_stopping = True
        await self.flush()

    async def flush(self) -> None:
        """Wait until everything that was sent is confirmed and acknowledged; what waits stays unread."""
        self._queue.clear()
        await self._unconfirmed.join()

    def release(self) -> None:
        """Forget what waits: partitions are assigned anew, and what is not acknowledged is read again."""
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
        return self._backlog.has_room(partition, _BEHIND_S if self.is_behind() else LONGEST_S)

    def _is_held(self, partition: int, name: str) -> bool:
        cell = self._cells.cell(name)
        return partition in self.held or (cell is not None and cell.awaits_rules)

    def _pause_reading(self) -> None:
        """Read no more of the partition that most of what waits came from."""
        fullest = self._acknowledgements.fullest()
        if fullest is not None and fullest not in self._paused:
            self._paused.add(fullest)
            self._consumer.pause_partitions([fullest])

    def _resume_reading(self) -> None:
        if self._paused and self._queue.size_bytes < self._limits.waiting_bytes / 2:
            self._consumer.resume_partitions(self._paused)
            self._paused.clear()
