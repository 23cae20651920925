"""The cells of the ledger partitions that this worker folds."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Protocol

from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.codec import Decision
from streams.cell.cell import Cell
from streams.kafka.records import ReadRecord
from streams.worker.intake import Intake
from streams.worker.partition import Capture, LedgerPartition, first_unread


class SnapshotTable(Protocol):
    """The latest snapshots of the partitions that are assigned to this worker."""

    @property
    def topic(self) -> str:
        """The topic of the snapshots."""

    @property
    def data(self) -> MutableMapping[bytes, bytes]:
        """Snapshots by cell, and coverages by `Coverage.key`."""


ReadyFor = Callable[[CellConfigured], Awaitable[None]]
"""Function that waits until this process can decide for a cell of a configuration."""


class Cells:
    """The state of each cell: restored from its snapshot, then folded event by event."""

    def __init__(self, intake: Intake, table: SnapshotTable, ready_for: ReadyFor, validates: bool) -> None:
        """Begin without cells.

        Args:
            validates: whether to check a cell's invariants after every event.
        """
        self._intake = intake
        self._table = table
        self._ready_for = ready_for
        self._validates = validates
        self._partitions: dict[int, LedgerPartition] = {}
        self._restored: dict[str, Cell | None] = {}
        """Cells restored from snapshots of which no event has been folded here."""
        self._ready: dict[str, CellConfigured] = {}
        """Configurations for which the wait is over, by cell."""

    def cell(self, name: str) -> Cell | None:
        """Return the state of a cell; None before its first event here, if it has no snapshot."""
        partition = self._partitions.get(self._intake.partition_of(name))
        if partition is not None and (cell := partition.cells.get(name)) is not None:
            self._restored.pop(name, None)
            return cell
        if name not in self._restored:
            snapshot = self._table.data.get(name.encode())
            self._restored[name] = None if snapshot is None else Cell.restore(snapshot, self._intake.book)
        return self._restored[name]

    def names(self) -> list[str]:
        """Return the names of cells of which an event was folded here."""
        return [name for partition in self._partitions.values() for name in partition.cells]

    def last_offset(self, partition: int) -> int:
        """Return the ledger offset of the last record of a partition that was folded here; -1 before the
        first."""
        folded = self._partitions.get(partition)
        return -1 if folded is None else folded.last_offset

    async def until_ready(self, record: ReadRecord) -> None:
        """Wait until this process can decide on the event of a ledger record."""
        name = (record.key or b"").decode(errors="replace")
        # Coverages are among the snapshots, and a foreign record of the ledger may have the key of one.
        cell = None if "/" in name else self.cell(name)
        configuration = None if cell is None else cell.configuration
        if configuration is not None and self._ready.get(name) is not configuration:
            await self._ready_for(configuration)
            self._ready[name] = configuration

    def fold(self, record: ReadRecord, written: Event | None) -> tuple[Cell | None, list[Decision]]:
        """Fold a ledger record and return its cell and the decisions; no cell before its first event.

        Raises:
            InvalidRecordError, LedgerGapError, RulesError, BrokenInvariantError: see `LedgerPartition.fold`.
        """
        partition = self._partitions.get(record.partition)
        if partition is None:
            partition = self._partitions[record.partition] = LedgerPartition(
                record.partition,
                first_unread(record),
                self._table.data,
                self._intake.book,
                self._validates,
            )
        decisions = partition.fold(record, written)
        return partition.cells.get(partition.last_cell), decisions

    def capture(self, partitions: Iterable[int]) -> Mapping[int, Capture]:
        """Return the state of the cells that changed since the last capture, by partition."""
        return {number: self._partitions[number].capture() for number in partitions}

    def release(self) -> None:
        """Forget every cell: partitions are reassigned, and restored from the snapshots."""
        self._partitions.clear()
        self._restored.clear()
