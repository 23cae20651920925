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
        """The topic that they are kept in."""

    @property
    def data(self) -> MutableMapping[bytes, bytes]:
        """Snapshots by cell, and coverages by `Coverage.key`."""


ReadyFor = Callable[[CellConfigured], Awaitable[None]]
"""Waits until this process can decide for a cell of a configuration."""


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
        """Cells as their snapshots have them, until an event of them is folded."""
        self._ready: dict[str, CellConfigured] = {}
        """Configurations of cells that need not wait any more."""

    def cell(self, name: str) -> Cell | None:
        """The state of a cell; None before an event of it was folded here, if it has no snapshot either."""
        partition = self._partitions.get(self._intake.partition_of(name))
        if partition is not None and (cell := partition.cells.get(name)) is not None:
            self._restored.pop(name, None)
            return cell
        if name not in self._restored:
            snapshot = self._table.data.get(name.encode())
            self._restored[name] = None if snapshot is None else Cell.restore(snapshot, self._intake.book)
        return self._restored[name]

    def names(self) -> list[str]:
        """The cells of which an event has been folded here."""
        return [name for partition in self._partitions.values() for name in partition.cells]

    def last_offset(self, partition: int) -> int:
        """Ledger offset of the last record of a partition that was folded here; -1 before the first."""
        folded = self._partitions.get(partition)
        return -1 if folded is None else folded.last_offset

    async def until_ready(self, record: ReadRecord) -> None:
        """Wait until the event of a ledger record can be decided in this process."""
        name = (record.key or b"").decode(errors="replace")
        # Coverages lie among the snapshots, and a foreign record of the ledger may have the key of one.
        cell = None if "/" in name else self.cell(name)
        configuration = None if cell is None else cell.configuration
        if configuration is not None and self._ready.get(name) is not configuration:
            await self._ready_for(configuration)
            self._ready[name] = configuration

    def fold(self, record: ReadRecord, written: Event | None) -> tuple[Cell | None, list[Decision]]:
        """Fold a ledger record into its cell; the cell is None before its first event.

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
        """The state of what changed in partitions since the last capture."""
        return {number: self._partitions[number].capture() for number in partitions}

    def release(self) -> None:
        """Forget every cell: partitions are assigned anew, and restored from the snapshots."""
        self._partitions.clear()
        self._restored.clear()
