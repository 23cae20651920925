"""One partition of the ledger: its cells, restored from their snapshots, and what those snapshots cover.

Does not use a broker: the processor orders the writing of snapshots and the acknowledgement of events.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgpack

from schemas.base import Event
from schemas.codec import Decision
from streams.cell.cell import Cell, compress
from streams.cell.ledger import read_ledger
from streams.cell.rules import RULES, RuleBook, RulesError
from streams.kafka.records import ReadRecord

COVERAGE_VERSION = 1


class LedgerGapError(Exception):
    """Events between the snapshots and the first event delivered are missing: folding on would lose them."""


@dataclass(frozen=True)
class Coverage:
    """What a partition's snapshots stand for: all of its events up to `offset`, and each cell's last one.

    A cell without events for long keeps its old snapshot; without this record, nothing would tell that from
    a snapshot that is too old.
    """

    offset: int
    cells: Mapping[str, int]

    @staticmethod
    def key(partition: int) -> bytes:
        """Its key among the snapshots: no name of a cell has a slash."""
        return f"/{partition}".encode()

    def to_bytes(self) -> bytes:
        return bytes(
            msgpack.packb({"version": COVERAGE_VERSION, "offset": self.offset, "cells": dict(self.cells)})
        )

    @classmethod
    def from_bytes(cls, record: bytes) -> "Coverage":
        """The coverage that `to_bytes` wrote.

        Raises:
            ValueError: if it is of another version.
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
    """What a partition's snapshots are made of. Who restores from them needs the events from the next on."""

    packed_cells: list[tuple[bytes, bytes]]
    """Key and packed state of each changed cell."""
    coverage: tuple[bytes, bytes]

    def records(self) -> list[tuple[bytes, bytes]]:
        """The snapshots, the coverage at the end. Takes a while, but frees the interpreter: run it aside."""
        return [*((key, compress(packed)) for key, packed in self.packed_cells), self.coverage]


class BrokenInvariantError(Exception):
    """A cell's state contradicts itself. What it decides from here on could harm somebody."""


def first_unread(record: ReadRecord) -> int:
    """The first offset that a record stands for: its own, or that of the first hole before it."""
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
        """Take over a partition that is read from `from_offset` on.

        Raises:
            LedgerGapError: if events before it are in no snapshot.
        """
        self.number = number
        self._next_offset = from_offset
        self._snapshots = snapshots
        self._book = book
        self._validates = validates
        self.cells: dict[str, Cell] = {}
        """Those of which an event was folded here."""
        self.last_cell = ""
        """Of the last event that was delivered; empty before there is one."""
        self._changed: set[str] = set()
        record = snapshots.get(Coverage.key(number))
        self._coverage = Coverage(-1, {}) if record is None else Coverage.from_bytes(record)
        if from_offset > self._coverage.offset + 1:
            raise LedgerGapError(
                f"ledger partition {number}: the snapshots cover offsets up to {self._coverage.offset}, but "
                f"events are delivered from {from_offset} on: {self._remedy()}"
            )

    def fold(self, record: ReadRecord, written: Event | None = None) -> list[Decision]:
        """Fold one record in; nothing is decided again for one that is folded in already.

        Args:
            written: the event of the record, where this process has written it.

        Raises:
            InvalidRecordError: if the record is no ledger event; it is passed over, here and in replay.
            LedgerGapError: if an event before it was not delivered, or a snapshot is lost or too old.
            RulesError: if the rules that are to decide it are not at hand.
            BrokenInvariantError: if the partition validates, and what should always hold does not any more.
        """
        if record.offset < self._next_offset:
            return []
        if first_unread(record) > self._next_offset:
            raise LedgerGapError(
                f"ledger partition {self.number}: offset {record.offset} was delivered where "
                f"{self._next_offset} is due: start the worker again"
            )
        due, self._next_offset = self._next_offset, record.offset + 1
        event = read_ledger(record, written)
        try:
            self.last_cell = event.envelope.event.cell
            cell = self._cell(self.last_cell)
            if event.offset <= cell.offset:
                return []
            decisions = cell.handle(event)
        except RulesError:
            # Not taken: snapshots must not claim it.
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
        """Ledger offset of the last record that was taken."""
        return self._next_offset - 1

    def capture(self) -> Capture:
        """The state of what changed since the last capture: cheap, so that folding goes on soon."""
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
            found = "there is none" if snapshot is None else f"it is of offset {cell.offset}"
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
