"""Decisions that a ledger implies, and those found: kept on disk, since a ledger may exceed memory."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from schemas.codec import Decision
from streams.cell.ledger_event import LedgerEvent

_TABLES = """
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    CREATE TABLE event (
        number INTEGER PRIMARY KEY,
        cell TEXT,
        offset INTEGER,
        content BLOB,
        unfolded INTEGER -- decisions demanded before it, where its own demand is unknown
    );
    CREATE TABLE decision (
        number INTEGER PRIMARY KEY,
        id TEXT UNIQUE,
        event INTEGER,
        place INTEGER,
        value BLOB,
        found BLOB
    );
"""
_DEMANDED = "decision.number, id, value, cell, offset, found"
_DECISION = f"SELECT {_DEMANDED} FROM decision JOIN event ON event.number = decision.event"


@dataclass(frozen=True)
class Demanded:
    """Decision that the ledger demands, and the first that was found under its id."""

    number: int
    """Position in the order of the ledger; meaningless if the demanded decisions are unknown."""
    id: str
    value: bytes | None
    """Demanded value; None if it is unknown and a decision was found."""
    cell: str
    offset: int
    """Ledger offset of the event that demands it."""
    found: bytes | None


@dataclass(frozen=True)
class Link:
    """Event of a cell, with one of its decisions or without any."""

    cell: str
    offset: int
    """Ledger offset of the event."""
    event: bytes
    """Line of the ledger."""
    decision: Demanded | None
    is_folded: bool
    """Whether the decisions that the event demands are known."""


class DemandedDecisions:
    """Events and their decisions, in an unnamed file that is deleted on exit.

    Its methods raise `sqlite3.Error` if the disk fails.
    """

    def __init__(self) -> None:
        # SQLite's name for a temporary database on disk.
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.executescript(_TABLES)
        # One transaction for all, never committed: otherwise each statement would be one.
        self._database.execute("BEGIN")
        self.events = 0
        self.decisions = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def add(self, event: LedgerEvent, decisions: list[Decision] | None) -> None:
        """Add the next event of the ledger and the decisions that it demands; None if they are unknown."""
        cell, unfolded = event.envelope.event.cell, self.decisions if decisions is None else None
        self._database.execute(
            "INSERT INTO event VALUES (?, ?, ?, ?, ?)",
            (self.events, cell, event.offset, event.canonical, unfolded),
        )
        for place, decision in enumerate(decisions or ()):
            self._database.execute(
                "INSERT INTO decision VALUES (?, ?, ?, ?, ?, NULL)",
                (self.decisions, decision.id, self.events, place, decision.canonical),
            )
            self.decisions += 1
        self.events += 1

    def get(self, id: str) -> Demanded | None:
        """Return the decision that is demanded under an id."""
        row = self._database.execute(f"{_DECISION} WHERE id = ?", (id,)).fetchone()
        return None if row is None else _demanded(row)

    def trust(self, place: tuple[str, int, int], id: str, value: bytes) -> tuple[int, int] | None:
        """Accept the first decision under an id as found if the decisions that its event demands are unknown.

        Args:
            place: cell, ledger offset and index in the id.

        Returns:
            The number of its event in the ledger, and the number of decisions demanded before it; None if the
            decisions of its event are known, or there is no such event.
        """
        self._database.execute("CREATE INDEX IF NOT EXISTS event_place ON event (cell, offset)")
        row = self._database.execute(
            "SELECT number, unfolded FROM event WHERE cell = ? AND offset = ? AND unfolded IS NOT NULL",
            place[:2],
        ).fetchone()
        if row is None:
            return None
        event, before = row
        self._database.execute(
            "INSERT INTO decision VALUES (NULL, ?, ?, ?, NULL, ?)", (id, event, place[2], value)
        )
        return event, before

    def find(self, demanded: Demanded, value: bytes) -> None:
        """Store the found value of a decision, unless one is stored."""
        self._database.execute(
            "UPDATE decision SET found = ? WHERE number = ? AND found IS NULL", (value, demanded.number)
        )

    def missing(self) -> Iterator[Demanded]:
        """Yield every decision that was not found, in the order of the ledger."""
        rows = self._database.execute(f"{_DECISION} WHERE found IS NULL ORDER BY decision.number")
        return map(_demanded, rows)

    def links(self) -> Iterator[Link]:
        """Yield every event with each of its decisions, in the order of the ledger."""
        self._database.execute("CREATE INDEX IF NOT EXISTS decision_event ON decision (event)")
        rows = self._database.execute(
            f"SELECT event.cell, event.offset, content, unfolded IS NULL, {_DEMANDED} "
            "FROM event LEFT JOIN decision ON decision.event = event.number "
            "ORDER BY event.number, decision.place"
        )
        for cell, offset, content, is_folded, *found in rows:
            decision = None if found[0] is None else _demanded(tuple(found))
            yield Link(cell, offset, content, decision, bool(is_folded))


def _demanded(row: tuple[int, str, bytes | None, str, int, bytes | None]) -> Demanded:
    return Demanded(*row)
