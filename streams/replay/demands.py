"""The decisions that a ledger implies, and those found: kept on disk, since a ledger may exceed memory."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from schemas.codec import Decision
from streams.cell.cell import LedgerEvent

_TABLES = """
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    CREATE TABLE event (
        number INTEGER PRIMARY KEY,
        cell TEXT,
        offset INTEGER,
        content BLOB,
        unfolded INTEGER -- decisions demanded before it, where nobody can say what it demands
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
    """A decision that the ledger demands, and the first that was found under its id."""

    number: int
    """Its place in the order of the ledger; without meaning where nobody can say what is demanded."""
    id: str
    value: bytes | None
    """None where nobody can say what is demanded, and something was found."""
    cell: str
    offset: int
    """Of the event that demands it."""
    found: bytes | None


@dataclass(frozen=True)
class Link:
    """An event of a cell, with one of its decisions or with the only fact that it has none."""

    cell: str
    offset: int
    """Of the event."""
    event: bytes
    """Its line of the ledger."""
    decision: Demanded | None
    is_folded: bool
    """Whether it is known what the event demands."""


class Demands:
    """Events and their decisions, in an unnamed file that is gone when this is left.

    Its methods raise `sqlite3.Error` where the disk fails.
    """

    def __init__(self) -> None:
        # SQLite's name for a temporary database on disk.
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.executescript(_TABLES)
        # One transaction for all, which nobody ever commits: each statement alone would be one.
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
        """Take the next event of the ledger and what it demands; None where nobody can say."""
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
        """The decision that is demanded under an id."""
        row = self._database.execute(f"{_DECISION} WHERE id = ?", (id,)).fetchone()
        return None if row is None else _demanded(row)

    def trust(self, place: tuple[str, int, int], id: str, value: bytes) -> tuple[int, int] | None:
        """Take the first decision under an id as found, where nobody can say what its event demands.

        Args:
            place: cell, ledger offset and index that the id names.

        Returns:
            the number of its event in the ledger, and how many decisions are demanded before it; None where
            it is known what its event demands, or there is no such event.
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
        """Note what was found of a decision, unless something was before."""
        self._database.execute(
            "UPDATE decision SET found = ? WHERE number = ? AND found IS NULL", (value, demanded.number)
        )

    def missing(self) -> Iterator[Demanded]:
        """Every decision of which nothing was found, in the order of the ledger."""
        rows = self._database.execute(f"{_DECISION} WHERE found IS NULL ORDER BY decision.number")
        return map(_demanded, rows)

    def links(self) -> Iterator[Link]:
        """Every event with each of its decisions, in the order of the ledger."""
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
