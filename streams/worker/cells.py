"""The cells of the ledger partitions that this worker folds: restored from snapshots, then folded.

It uses no broker: `CellProcessor` orders the writing of snapshots and the acknowledgement of events.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Protocol

import msgpack

from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.codec import Decision
from streams.cell.ledger import ledger_event_of
from streams.cell.rules import RULES, RuleBook, RulesError
from streams.cell.state_machine import Cell, compress
from streams.kafka.records import ReadRecord
from streams.worker.intake import Intake

COVERAGE_VERSION = 1


class LedgerGapError(Exception):
    """Events between the snapshots and the first delivered event are missing: folding on would lose them."""


@dataclass(frozen=True)
class Coverage:
    """Coverage of a partition's snapshots: all of its events up to `offset`, and the last event of each cell.

    A cell without recent events keeps its old snapshot; only this record distinguishes that from a snapshot
    that is too old.
    """

    offset: int
    cells: Mapping[str, int]

    @staticmethod
    def key(partition: int) -> bytes:
        """Return the key of the coverage among the snapshots; no name of a cell has a slash."""
        return f"/{partition}".encode()

    def to_bytes(self) -> bytes:
        return bytes(
            msgpack.packb({"version": COVERAGE_VERSION, "offset": self.offset, "cells": dict(self.cells)})
        )

    @classmethod
    def from_bytes(cls, record: bytes) -> "Coverage":
        """Read the coverage that `to_bytes` wrote.

        Raises:
            ValueError: it is of another version.
        """
        state = msgpack.unpackb(record)
        if state["version"] != COVERAGE_VERSION:
            raise ValueError(
                f"coverage of version {state['version']}, this code reads version {COVERAGE_VERSION}: "
                "delete the snapshots, and the cells are folded from their whole ledger"
            )
        return cls(state["offset"], state["cells"])


@dataclass(frozen=True)
class Capture:
    """State of a partition, from which its snapshots are made."""

    packed_cells: list[tuple[bytes, bytes]]
    """Key and packed state of each changed cell."""
    coverage: tuple[bytes, bytes]

    def records(self) -> list[tuple[bytes, bytes]]:
        """Return the snapshots, and the coverage last. Slow, but it releases the GIL: call it in a thread."""
        return [*((key, compress(packed)) for key, packed in self.packed_cells), self.coverage]


class BrokenInvariantError(Exception):
    """A cell's state contradicts itself. Its further decisions could be harmful."""


def first_unread(record: ReadRecord) -> int:
    """Return the first offset that a record covers: its own, or that of the first hole before it."""
    return record.offset if record.from_offset is None else record.from_offset


class LedgerPartition:
    """The cells of one partition, folded event by event."""

    def __init__(
        self,
        number: int,
        from_offset: int,
        snapshots: Mapping[bytes, bytes],
        book: RuleBook = RULES,
        validates: bool = False,
    ) -> None:
        """Restore a partition that is read from `from_offset` on.

        Raises:
            LedgerGapError: events before it are in no snapshot.
        """
        self.number = number
        self._next_offset = from_offset
        self._snapshots = snapshots
        self._book = book
        self._validates = validates
        self.cells: dict[str, Cell] = {}
        """Cells of which an event was folded here, by name."""
        self.last_cell = ""
        """Cell of the last delivered event; empty before the first."""
        self._changed: set[str] = set()
        record = snapshots.get(Coverage.key(number))
        self._coverage = Coverage(-1, {}) if record is None else Coverage.from_bytes(record)
        if from_offset > self._coverage.offset + 1:
            raise LedgerGapError(
                f"ledger partition {number}: the snapshots cover offsets up to {self._coverage.offset}, but "
                f"events are delivered from {from_offset} on: {self._remedy()}"
            )

    def fold(self, record: ReadRecord, written: Event | None = None) -> list[Decision]:
        """Fold one record; a record that is already folded gives no decisions.

        Args:
            written: the event of the record, if this process wrote it.

        Raises:
            InvalidRecordError: the record is not a ledger event; it is skipped, here and in replay.
            LedgerGapError: an event before it was not delivered, or a snapshot is lost or too old.
            RulesError: the rules of the event are not available.
            BrokenInvariantError: the partition validates, and an invariant of the cell is broken.
        """
        if record.offset < self._next_offset:
            return []
        if first_unread(record) > self._next_offset:
            raise LedgerGapError(
                f"ledger partition {self.number}: offset {record.offset} was delivered instead of "
                f"{self._next_offset}: start the worker again"
            )
        due, self._next_offset = self._next_offset, record.offset + 1
        event = ledger_event_of(record, written)
        try:
            self.last_cell = event.envelope.event.cell
            cell = self._cell(self.last_cell)
            if event.offset <= cell.offset:
                return []
            decisions = cell.handle(event)
        except RulesError:
            # The event was not folded: snapshots must not cover it.
            self._next_offset = due
            raise
        if self._validates and (broken := _broken_invariants(cell)):
            raise BrokenInvariantError(
                f"cell {cell.name} is broken after ledger offset {event.offset}, a fault of the code: "
                f"{'; '.join(broken[:3])} ({len(broken)} in all)"
            )
        self._changed.add(cell.name)
        return decisions

    @property
    def last_offset(self) -> int:
        """Ledger offset of the last folded record."""
        return self._next_offset - 1

    def capture(self) -> Capture:
        """Return the state of the cells that changed since the last capture. Fast, so folding goes on
        soon."""
        records = [(name.encode(), self.cells[name].packed()) for name in sorted(self._changed)]
        offsets = {name: self.cells[name].offset for name in self._changed}
        self._coverage = Coverage(
            max(self._coverage.offset, self._next_offset - 1), {**self._coverage.cells, **offsets}
        )
        self._changed.clear()
        return Capture(records, (Coverage.key(self.number), self._coverage.to_bytes()))

    def _cell(self, name: str) -> Cell:
        cell = self.cells.get(name)
        if cell is None:
            cell = self.cells[name] = self._restore(name)
        return cell

    def _restore(self, name: str) -> Cell:
        snapshot = self._snapshots.get(name.encode())
        cell = Cell(name, self._book) if snapshot is None else Cell.restore(snapshot, self._book)
        covered = self._coverage.cells.get(name, -1)
        if cell.offset < covered:
            found = "it is missing" if snapshot is None else f"it is of offset {cell.offset}"
            raise LedgerGapError(
                f"ledger partition {self.number}: the snapshot of cell {name} should be of offset {covered} "
                f"or later, but {found}: {self._remedy()}"
            )
        return cell

    def _remedy(self) -> str:
        return (
            "with the workers stopped, delete the snapshots topic and set the group's offsets of the ledger "
            "to the earliest; the cells are then folded from their whole ledger"
        )


def _broken_invariants(cell: Cell) -> list[str]:
    """Return the invariants that a cell breaks; an exception of the check counts as one."""
    try:
        return list(cell.broken_invariants())
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
        return [f"the check raised {type(error).__name__}: {error}"]


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
