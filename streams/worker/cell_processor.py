"""The Faust side of the cells: ledger events in, decisions out, and snapshots between.

The order makes a crash harmless: decisions are confirmed by the broker, then the snapshots are written and
confirmed, and only then the events are acknowledged. Folding continues meanwhile.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass, field

from faust.types.tables import TableT
from faust.types.tuples import TP

from schemas.cells import CellConfigured
from schemas.codec import InvalidRecordError
from streams.cell.cell import Cell
from streams.cell.rules import RuleBook, RulesError
from streams.kafka.publisher import Confirmation, Publisher
from streams.kafka.records import ReadRecord, SentRecord
from streams.worker.dead_letters import dead_letter
from streams.worker.fault_log import FaultLog
from streams.worker.partition import LedgerPartition, first_unread
from streams.worker.publication import Publication
from streams.worker.zone_states import ZoneStates


class SuspendedError(Exception):
    """The process was suspended for so long that another worker may own its cells."""


@dataclass
class _Progress:
    """What was folded and is not yet acknowledged."""

    events: int = 0
    last_offsets: dict[TP, int] = field(default_factory=dict)
    confirmations: list[Confirmation] = field(default_factory=list)


class CellProcessor:
    """Folds the ledger partitions assigned to this worker."""

    def __init__(
        self,
        snapshots: TableT[bytes, bytes],
        publisher: Publisher,
        acknowledge: Callable[[TP, int], None],
        publication: Publication,
        ledger_dead_letters: str,
        snapshot_every_events: int,
        suspension_limit_s: float,
        partition_of: Callable[[str], int],
        on_folded: Callable[[int, int, float], None],
        book: RuleBook,
        validates: bool,
        ready_for: Callable[[CellConfigured], Awaitable[None]],
        monotonic_s: Callable[[], float] = time.monotonic,
        count: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Describe a processor.

        Args:
            partition_of: the ledger partition of a cell.
            on_folded: is told partition and offset of each event that was folded, and how long that took.
            book: the rules that cells may come under.
            validates: whether to look after every event if all holds that should always hold of a cell.
            ready_for: waits until a cell so configured can be decided in this process.
            count: called with a metric's name at each occurrence.
        """
        self._snapshots = snapshots
        self._publisher = publisher
        self._acknowledge = acknowledge
        self._publication = publication
        self._zone_states = ZoneStates(publication.topic_prefix)
        self._ledger_dead_letters = ledger_dead_letters
        self._snapshot_every_events = snapshot_every_events
        self._suspension_limit_s = suspension_limit_s
        self._partition_of = partition_of
        self._on_folded = on_folded
        self._book = book
        self._validates = validates
        self._ready_for = ready_for
        self._ready: dict[str, CellConfigured] = {}
        """Configurations of cells that need not wait any more."""
        self._assignments = 0
        self._monotonic_s = monotonic_s
        self._fault_log = FaultLog(count)
        self._alive_at_s = monotonic_s()
        self._partitions: dict[int, LedgerPartition] = {}
        self._restored: dict[str, Cell | None] = {}
        """Cells as their snapshots have them, until an event of them is folded."""
        self._progress = _Progress()
        self._folding = asyncio.Lock()
        self._snapshotting = asyncio.Lock()
        self._many_events = asyncio.Event()

    async def run(self, records: AsyncIterable[ReadRecord]) -> None:
        """Fold every record of the ledger, in order. Ends with `records`.

        Raises:
            LedgerGapError: if events are missing.
            RulesError: if the rules of an event are not at hand.
            ValueError: if a snapshot is of another version.
        """
        async for record in records:
            assignment = self._assignments
            try:
                await self._until_ready(record)
                if assignment != self._assignments:
                    continue  # while it waited, its partition was assigned anew: it will be delivered again
                await self._take(record)
            except RulesError:
                # What could be decided is secured: who has the rules goes on from there.
                await self.snapshot()
                raise
            waiting = self._progress.events
            if waiting >= self._snapshot_every_events:
                self._many_events.set()
            if waiting >= 2 * self._snapshot_every_events:
                await self.snapshot()

    async def snapshot_regularly(self, every_s: float) -> None:
        """Write snapshots every so many events or seconds, whichever is first. Never returns."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._many_events.wait(), every_s)
            self._many_events.clear()
            await self.snapshot()

    async def snapshot(self) -> None:
        """Secure everything folded so far, then acknowledge it.

        Raises:
            KafkaException: if the broker does not confirm a record.
            SuspendedError: if this process stood still for too long to be trusted.
        """
        async with self._snapshotting:
            async with self._folding:
                progress, self._progress = self._progress, _Progress()
                if not progress.events:
                    return
                folded = sorted(tp.partition for tp in progress.last_offsets)
                captures = [(number, self._partitions[number].capture()) for number in folded]
            snapshots: list[SentRecord] = []
            coverages: list[SentRecord] = []
            changelog = self._snapshots.changelog_topic.get_topic_name()
            for number, capture in captures:
                *cells, coverage = [
                    SentRecord(changelog, key, value, partition=number)
                    for key, value in await asyncio.to_thread(capture.records)
                ]
                snapshots += cells
                coverages.append(coverage)
            for confirmation in progress.confirmations:
                await confirmation
            self._refuse_after_suspension()
            await self._confirm(snapshots)
            self._refuse_after_suspension()
            # Not together: coverage of a snapshot that was refused would end every later start.
            await self._confirm(coverages)
            for record in (*snapshots, *coverages):
                assert record.key is not None
                assert record.value is not None
                self._snapshots.data[record.key] = record.value
            for tp, offset in progress.last_offsets.items():
                self._acknowledge(tp, offset)

    def cell(self, name: str) -> Cell | None:
        """The state of a cell; None before an event of it was folded here, if it has no snapshot either."""
        partition = self._partitions.get(self._partition_of(name))
        if partition is not None and (cell := partition.cells.get(name)) is not None:
            self._restored.pop(name, None)
            return cell
        if name not in self._restored:
            snapshot = self._snapshots.data.get(name.encode())
            self._restored[name] = None if snapshot is None else Cell.restore(snapshot, self._book)
        return self._restored[name]

    def names(self) -> list[str]:
        """The cells that have been folded here."""
        return [name for partition in self._partitions.values() for name in partition.cells]

    def last_offset(self, partition: int) -> int:
        """Ledger offset of the last record of a partition that was taken here; -1 where none was yet."""
        taken = self._partitions.get(partition)
        return -1 if taken is None else taken.last_offset

    async def release(self) -> None:
        """Forget every cell: the partitions are assigned anew, and restored from the snapshots.

        Events that are not yet acknowledged will be delivered again, here or elsewhere.
        """
        self._assignments += 1
        async with self._folding:
            self._partitions.clear()
            self._restored.clear()
            self._zone_states.forget()
            self._progress = _Progress()

    async def watch_for_suspension(self, every_s: float) -> None:
        """Note regularly that this process runs. Never returns."""
        while True:
            await asyncio.sleep(every_s)
            self._refuse_after_suspension()
            self._alive_at_s = self._monotonic_s()

    def _refuse_after_suspension(self) -> None:
        silent_s = self._monotonic_s() - self._alive_at_s
        if silent_s > self._suspension_limit_s:
            raise SuspendedError(
                f"the process stood still for {silent_s:.1f} s, and another worker may have its cells: "
                "start it again"
            )

    async def _until_ready(self, record: ReadRecord) -> None:
        name = (record.key or b"").decode(errors="replace")
        # Among the snapshots are records that are of no cell, and whoever writes to the ledger may name them.
        cell = None if "/" in name else self.cell(name)
        configuration = None if cell is None else cell.configuration
        if configuration is not None and self._ready.get(name) is not configuration:
            await self._ready_for(configuration)
            self._ready[name] = configuration

    async def _take(self, record: ReadRecord) -> None:
        async with self._folding:
            began_s = self._monotonic_s()
            await self._fold(record)
            self._progress.events += 1
            self._progress.last_offsets[TP(record.topic, record.partition)] = record.offset
            self._on_folded(record.partition, record.offset, self._monotonic_s() - began_s)

    async def _fold(self, record: ReadRecord) -> None:
        partition = self._partitions.get(record.partition)
        if partition is None:
            partition = LedgerPartition(
                record.partition, first_unread(record), self._snapshots.data, self._book, self._validates
            )
            self._partitions[record.partition] = partition
        try:
            decisions = partition.fold(record)
        except InvalidRecordError as refusal:
            await self._send(dead_letter(record, self._ledger_dead_letters, str(refusal)))
            return
        for decision in decisions:
            for sent in self._publication.records(decision):
                await self._send(sent)
        cell = partition.cells.get(partition.last_cell)
        if cell is not None:
            self._fault_log.take(cell, decisions)
            for sent in self._zone_states.records(cell, decisions):
                await self._send(sent)

    async def _confirm(self, records: list[SentRecord]) -> None:
        """Send records and wait for the broker: through the table itself nobody could."""
        for confirmation in [await self._publisher.send(record) for record in records]:
            await confirmation

    async def _send(self, record: SentRecord) -> None:
        self._progress.confirmations.append(await self._publisher.send(record))
