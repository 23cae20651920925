"""The Faust side of intake: input events wait their turn, are sent to the ledger, and are acknowledged then.

It also tracks heartbeats: nodes' signs of life stay here, and only their changes enter the ledger.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from faust.types.tuples import TP

from schemas.clock import ClockTicked
from schemas.codec import Envelope, rfc3339
from schemas.fleet import FleetEvent, NodeHeard, NodeHeartbeat, NodeSilent
from schemas.registry import writer_of
from schemas.topics import FLEET
from streams.cell.cell import Cell
from streams.kafka.publisher import Confirmation, Publisher
from streams.kafka.records import ReadRecord, SentRecord
from streams.worker.faust_transport import LONGEST_ANSWER_S
from streams.worker.intake import Accepted, Claim, Intake
from streams.worker.intake_queue import IntakeQueue, RecordTimes, Waiting
from streams.worker.ledger_backlog import LONGEST_S, LedgerBacklog
from streams.worker.liveness import GRACE_S, LivenessMonitor

SOURCE = "millrace/intake"
"""The CloudEvents source of what intake itself says."""

_REPORT_WRITERS = f"{FLEET}/"
_LOOK_AGAIN_S = 0.1
"""After so long it is looked again whether a tick may enter the ledger."""
_WATCH_EVERY_S = 0.25
_CURRENT_S = 20 * LONGEST_ANSWER_S
"""What the broker said longer ago is not the present."""
_BEHIND_S = 0.02
"""While much is left to read, the events on their way to their cells may take no longer than this: reading
goes before deciding, since what is fair is known only of what has been read."""
_SAY_AGAIN_S = 10.0
"""What was said of a node is said again only after so long: its cell may not have folded it yet."""


class Consumer(Protocol):
    """What intake needs of Faust's consumer."""

    def acknowledge(self, tp: TP, offset: int) -> None:
        """This record and all before it in its partition are done."""

    def read_until_s(self, tp: TP, last_offset: int) -> float | None:
        """Up to which moment (Unix time) a partition is read, where `last_offset` was the last taken of it,
        or -1; None where records are on their way."""

    def deep(self) -> Iterable[TP]:
        """Partitions of which much was left to read when they were read last."""

    def pause_partitions(self, tps: Iterable[TP]) -> None: ...

    def resume_partitions(self, tps: Iterable[TP]) -> None: ...


class Cells(Protocol):
    """What intake needs of the cells that this worker folds."""

    def cell(self, name: str) -> Cell | None:
        """The present state of a cell; None where it is not known yet."""

    def names(self) -> list[str]:
        """The cells whose state is known."""


@dataclass(frozen=True)
class Clocks:
    """The two clocks of a worker."""

    unix_s: Callable[[], float]
    monotonic_s: Callable[[], float]


class _Acknowledgements:
    """Records are done in any order, and acknowledged in that of their offsets."""

    def __init__(self, acknowledge: Callable[[TP, int], None]) -> None:
        self._acknowledge = acknowledge
        self._open: dict[TP, OrderedDict[int, bool]] = {}
        self.taken: dict[TP, int] = {}
        """The last offset that was taken of each partition."""

    def take(self, tp: TP, offset: int) -> bool:
        """Note a record that was read; False if it was read before."""
        if offset <= self.taken.get(tp, -1):
            return False
        self.taken[tp] = offset
        self._open.setdefault(tp, OrderedDict())[offset] = False
        return True

    def done(self, tp: TP, offset: int) -> None:
        """Note that the broker has what became of a record, or that nothing has to."""
        records = self._open.get(tp)
        if records is None or offset not in records:
            return  # of an assignment that is over
        records[offset] = True
        last = -1
        while records and records[first := next(iter(records))]:
            del records[first]
            last = first
        if last >= 0:
            self._acknowledge(tp, last)

    def fullest(self) -> TP | None:
        """The partition of which most records are not done."""
        return max(self._open, key=lambda tp: len(self._open[tp]), default=None)

    def forget(self) -> None:
        self._open.clear()
        self.taken.clear()


class IntakeProcessor:
    """Reads, lets wait, sends on and acknowledges; the order is the queue's, the pace the cells'."""

    def __init__(
        self,
        intake: Intake,
        topic_prefix: str,
        publisher: Publisher,
        consumer: Consumer,
        cells: Cells,
        backlog: LedgerBacklog,
        holds_back: Callable[[str], bool],
        queue: IntakeQueue,
        most_waiting_bytes: int,
        most_unconfirmed: int,
        clocks: Clocks,
    ) -> None:
        """Describe a processor.

        Args:
            holds_back: whether nothing may be sent now to a cell that this worker folds.
            most_waiting_bytes: while so much waits, the partition that most of it came from is not read.
            most_unconfirmed: so many records may be on their way to the broker.
        """
        self._intake = intake
        self._fleet = f"{topic_prefix}.{FLEET}"
        self._publisher = publisher
        self._consumer = consumer
        self._cells = cells
        self._backlog = backlog
        self._holds_back = holds_back
        self._queue = queue
        self._most_waiting_bytes = most_waiting_bytes
        self._clocks = clocks
        self._times = RecordTimes()
        self._monitor = LivenessMonitor(clocks.monotonic_s())
        self._said: dict[tuple[str, str, type[NodeHeard | NodeSilent]], float] = {}
        """When something was last said of a node, by cell, node and what."""
        self._acknowledgements = _Acknowledgements(consumer.acknowledge)
        self._unconfirmed: asyncio.Queue[tuple[Waiting | ReadRecord, Confirmation]] = asyncio.Queue(
            most_unconfirmed
        )
        self._paused: set[TP] = set()
        self._stopping = False
        self._changed = asyncio.Event()
        """Something waits, or there is room for it."""

    async def run(self, records: AsyncIterable[ReadRecord]) -> None:
        """Let every record of the input topics wait its turn. Ends with `records`."""
        async for record in records:
            tp = TP(record.topic, record.partition)
            if not self._acknowledgements.take(tp, record.offset):
                continue
            if record.topic == self._fleet and record.is_broker_time and record.timestamp_ms is not None:
                self._monitor.read(record.partition, record.timestamp_ms / 1_000)
            await self._take(record)

    async def send_on(self) -> None:
        """Send waiting events to the ledger, as fast as their cells fold them. Never returns."""
        while True:
            waiting = self._queue.take(self._clocks.monotonic_s(), self._may_tick, self._has_room)
            if waiting is not None:
                await self._send(waiting)
                continue
            self._changed.clear()
            # `wait_for` would make a task each time.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await self._changed.wait()

    async def acknowledge_confirmed(self) -> None:
        """Acknowledge each record once the broker has its ledger record or dead letter. Never returns.

        Raises:
            KafkaException: if the broker does not take a record.
        """
        while True:
            source, confirmation = await self._unconfirmed.get()
            offset = await confirmation
            if isinstance(source, Waiting):
                self._backlog.confirmed(self._intake.partition_of(source.cell), offset, source)
                self._changed.set()
            record = source.record if isinstance(source, Waiting) else source
            if isinstance(record, ReadRecord):
                self._acknowledgements.done(TP(record.topic, record.partition), record.offset)
            self._unconfirmed.task_done()

    async def watch_nodes(self) -> None:
        """Listen to the nodes, and say which have fallen silent. Never returns."""
        while True:
            await asyncio.sleep(_WATCH_EVERY_S)
            for name in self._cells.names():
                cell, partition = self._cells.cell(name), self._intake.partition_of(name)
                if cell is None or cell.nodes is None:
                    continue
                self._listens(partition)
                timeout_s = cell.nodes.layout.owned.node_timeout_s
                for node in cell.nodes.watched:
                    silence_s = self._monitor.silence_s(partition, name, node)
                    if silence_s > timeout_s:
                        self._say(NodeSilent(cell=name, node=node, silent_s=round(silence_s, 3)))
            self._resume_reading()

    def folded(self, partition: int, offset: int, fold_s: float) -> None:
        """Note that an event of the ledger has been folded."""
        folded = self._backlog.folded(partition, offset, fold_s)
        if folded is not None:
            self._queue.charge(folded, fold_s)
        self._changed.set()

    def release(self) -> None:
        """Forget what waits: the partitions are assigned anew, and what is not acknowledged is read again."""
        self._queue.clear()
        self._backlog.forget()
        self._acknowledgements.forget()
        self._times.forget()
        self._monitor.forget(self._clocks.monotonic_s())
        self._said.clear()
        self._paused.clear()

    async def stop(self) -> None:
        """Send nothing more to the ledger, and wait until the broker has confirmed what was sent."""
        self._stopping = True
        await self.flush()

    async def flush(self) -> None:
        """Wait until everything that was sent on is confirmed and acknowledged; what waits stays unread."""
        self._queue.clear()
        await self._unconfirmed.join()

    async def _take(self, record: ReadRecord) -> None:
        claim, heartbeat = self._intake.claim(record), None
        if claim is None or claim.type is NodeHeartbeat:
            judged = self._intake.admit(record)
            if not isinstance(judged, Accepted):
                await self._send_dead_letter(record, judged)
                return
            event = judged.event
            claim = Claim(event.cell, writer_of(event), type(event))
            heartbeat = event if isinstance(event, NodeHeartbeat) else None
        if self._is_of_unknown_node(claim):
            reason = f"cell {claim.cell} has no node {claim.writer.removeprefix(_REPORT_WRITERS)}"
            await self._send_dead_letter(record, self._intake.refuse(record, reason))
            return
        if heartbeat is not None:
            self._note_sign(heartbeat)
            cell = self._cells.cell(heartbeat.cell)
            if cell is not None and cell.nodes is not None and cell.nodes.awaits(heartbeat):
                self._say(NodeHeard(**dict(heartbeat)))
            self._acknowledgements.done(TP(record.topic, record.partition), record.offset)
            return
        unix_s = self._clocks.unix_s()
        time_s = self._times.of(record.topic, record.partition, record.timestamp_ms, unix_s)
        self._wait(claim, time_s, record)
        self._pause_reading()

    def _wait(self, claim: Claim, time_s: float, record: ReadRecord | SentRecord) -> None:
        waiting = Waiting(
            claim.cell,
            claim.writer,
            time_s,
            self._clocks.monotonic_s(),
            record,
            is_tick=claim.type is ClockTicked,
            is_report=claim.writer.startswith(_REPORT_WRITERS),
        )
        self._queue.put(waiting)
        self._changed.set()

    async def _send(self, waiting: Waiting) -> None:
        """Send an event to the ledger, or to the dead letters if it is none."""
        sent = waiting.record
        if isinstance(sent, ReadRecord):
            judged = self._intake.admit(sent)
            if not isinstance(judged, Accepted):
                await self._send_dead_letter(sent, judged)
                return
            if isinstance(judged.event, FleetEvent):
                # The report itself tells its cell that the node is there.
                self._note_sign(judged.event)
            sent = judged.record
        self._backlog.sent(self._intake.partition_of(waiting.cell))
        await self._unconfirmed.put((waiting, await self._publisher.send(sent)))

    async def _send_dead_letter(self, record: ReadRecord, letter: SentRecord) -> None:
        await self._unconfirmed.put((record, await self._publisher.send(letter)))

    def _is_of_unknown_node(self, claim: Claim) -> bool:
        """Whether a report is about a node that its cell lacks; such reports would fill the ledger."""
        cell = self._cells.cell(claim.cell) if claim.writer.startswith(_REPORT_WRITERS) else None
        if cell is None or cell.nodes is None:
            return False
        return cell.nodes.zone_of(claim.writer.removeprefix(_REPORT_WRITERS)) is None

    def _may_tick(self, tick: Waiting) -> bool:
        """Whether what the cell's nodes reported before a tick has been read, or was waited for long
        enough."""
        now_s = self._clocks.monotonic_s()
        if now_s - tick.read_s >= GRACE_S:
            return True
        partition = self._intake.partition_of(tick.cell)
        if not (self._listens(partition) or self._has_passed(partition, tick)):
            return False
        cell = self._cells.cell(tick.cell)
        watched = () if cell is None or cell.nodes is None else cell.nodes.watched
        return self._monitor.settled(partition, tick.cell, watched, now_s)

    def _has_passed(self, partition: int, tick: Waiting) -> bool:
        """Whether a later record than a tick has been read of `fleet`."""
        timestamp_ms = tick.record.timestamp_ms if isinstance(tick.record, ReadRecord) else None
        return timestamp_ms is not None and self._monitor.has_read_until(partition, timestamp_ms / 1_000)

    def _listens(self, partition: int) -> bool:
        """Whether everything that the nodes of a partition's cells have sent is read, as of now."""
        tp = TP(self._fleet, partition)
        until_s = self._consumer.read_until_s(tp, self._acknowledgements.taken.get(tp, -1))
        if until_s is None or abs(self._clocks.unix_s() - until_s) > _CURRENT_S:
            return False
        self._monitor.listen(partition, self._clocks.monotonic_s())
        return True

    def _note_sign(self, event: FleetEvent) -> None:
        cell = self._cells.cell(event.cell)
        if cell is not None and cell.nodes is not None and cell.nodes.zone_of(event.node) is not None:
            partition = self._intake.partition_of(event.cell)
            self._monitor.hear(partition, event.cell, event.node, self._clocks.monotonic_s())

    def _say(self, event: NodeHeard | NodeSilent) -> None:
        """Let the ledger know, behind what the node itself has reported."""
        now_s, about = self._clocks.monotonic_s(), (event.cell, event.node, type(event))
        if now_s - self._said.get(about, -_SAY_AGAIN_S) < _SAY_AGAIN_S:
            return
        self._said[about] = now_s
        unix_s = self._clocks.unix_s()
        id = f"{event.TYPE.split('.')[2]}-{event.node}-{unix_s:.3f}"
        envelope = Envelope(id, SOURCE, rfc3339(int(unix_s * 1_000)), event)
        claim = Claim(event.cell, f"{_REPORT_WRITERS}{event.node}", type(event))
        self._wait(claim, unix_s, self._intake.ledger_record(envelope))

    def _has_room(self, cell: str) -> bool:
        partition = self._intake.partition_of(cell)
        if self._stopping or (self._backlog.is_ours(partition) and self._holds_back(cell)):
            return False
        behind = any(tp.topic in self._intake.inputs for tp in self._consumer.deep())
        return self._backlog.has_room(partition, _BEHIND_S if behind else LONGEST_S)

    def _pause_reading(self) -> None:
        """While too much waits, read no more of the partition that most of it came from."""
        if self._queue.size_bytes <= self._most_waiting_bytes:
            return
        fullest = self._acknowledgements.fullest()
        if fullest is not None and fullest not in self._paused:
            self._paused.add(fullest)
            self._consumer.pause_partitions([fullest])

    def _resume_reading(self) -> None:
        if self._paused and self._queue.size_bytes < self._most_waiting_bytes / 2:
            self._consumer.resume_partitions(self._paused)
            self._paused.clear()
