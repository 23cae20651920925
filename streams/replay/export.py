"""Export of a log on Kafka to files: each decision once, in ledger order, and every deviating record."""

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from schemas.codec import InvalidRecordError, decode_decision
from schemas.kafka_connection import KafkaConnection
from schemas.rules import RulesAdopted
from schemas.topics import DECISIONS, LEDGER, STATE_DIGEST_HEADER, topic_name
from streams.cell.ledger_event import LedgerEvent
from streams.kafka.reader import KafkaReader
from streams.kafka.records import ReadRecord
from streams.replay.files import ledger_line, opened, state_file
from streams.replay.replay import DecisionRecord, claimed_place
from streams.replay.sources import decision_records, kept_states, ledger_events, on_disk

_TABLES = """
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    CREATE TABLE event (number INTEGER PRIMARY KEY, cell TEXT, offset INTEGER, UNIQUE (cell, offset));
    CREATE TABLE record (
        event INTEGER,
        place INTEGER,
        digest BLOB,
        value BLOB,
        UNIQUE (event, place, digest) ON CONFLICT IGNORE
    );
"""


def export(
    kafka: KafkaConnection,
    topic_prefix: str,
    ledger_file: Path,
    decisions_file: Path,
    settled: Mapping[str, int],
    cell: str | None = None,
) -> tuple[int, int]:
    """Write the ledger of one cell, or of all, and the decisions about it as JSON lines.

    The states that it names are written to a folder next to the ledger.

    Identical repetitions are left out. A record that differs from the ledger's demand is written like the
    others, so that the files prove no more than the topics.

    Args:
        settled: ledger offset up to which a cell is written, by cell; see `Verdict.settled`.

    Returns:
        The numbers of events and decisions.

    Raises:
        ReadError: Kafka does not answer, or not to this client.
        ReplayError: a file cannot be opened, or there is no room on disk.
        OSError: a file cannot be written.
    """
    with (
        KafkaReader(kafka) as reader,
        opened(ledger_file, "wb") as ledger,
        opened(decisions_file, "wb") as decisions,
    ):
        events = ledger_events(reader, reader.slice(topic_name(topic_prefix, LEDGER)), cell)
        records = decision_records(reader, reader.slice(topic_name(topic_prefix, DECISIONS)), cell)
        written, digests = on_disk(lambda: _write(events, records, settled, ledger, decisions))
        for state in kept_states(reader, topic_prefix, digests) if digests else ():
            _write_state(ledger_file, state)
        return written


def _write(
    events: Iterable[LedgerEvent],
    records: Iterable[DecisionRecord],
    settled: Mapping[str, int],
    ledger: IO[bytes],
    decisions: IO[bytes],
) -> tuple[tuple[int, int], set[str]]:
    digests = set[str]()
    with _Order() as order:
        for event in events:
            what = event.envelope.event
            if event.offset <= settled.get(what.cell, -1):
                order.add_event(event)
                if isinstance(what, RulesAdopted):
                    digests.add(what.state_digest)
                ledger.write(ledger_line(event))
        for record in records:
            if not _is_later(record, settled):
                order.add_record(record)
        written = 0
        for value in order.records():
            # Only a record that is no decision has a line break; with a space in its place it is still
            # invalid.
            decisions.write(value.replace(b"\n", b" ") + b"\n")
            written += 1
        return (order.events, written), digests


def _write_state(ledger_file: Path, state: ReadRecord) -> None:
    """Write a kept state under its claimed digest."""
    claimed = next(value for name, value in state.headers if name == STATE_DIGEST_HEADER)
    path = state_file(ledger_file, (claimed or b"").decode())
    path.parent.mkdir(exist_ok=True)
    with opened(path, "wb") as file:
        file.write(state.value or b"")


def _is_later(record: DecisionRecord, settled: Mapping[str, int]) -> bool:
    """Return whether a decision belongs to an event after the last written one of its cell."""
    try:
        decode_decision(record.value)
    except InvalidRecordError:
        return False
    place = claimed_place(record.value)
    return place is not None and place[1] > settled.get(place[0], -1)


class _Order:
    """Sorter of decisions by the ledger's order, in an unnamed file that is deleted on exit."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.executescript(_TABLES)
        self._database.execute("BEGIN")
        self.events = 0

    def __enter__(self) -> "_Order":
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def add_event(self, event: LedgerEvent) -> None:
        self._database.execute(
            "INSERT INTO event VALUES (?, ?, ?)", (self.events, event.envelope.event.cell, event.offset)
        )
        self.events += 1

    def add_record(self, record: DecisionRecord) -> None:
        """Add a record. A repetition is dropped, unless its event is unknown."""
        place = claimed_place(record.value)
        row = (
            place
            and self._database.execute(
                "SELECT number FROM event WHERE cell = ? AND offset = ?", place[:2]
            ).fetchone()
        )
        digest = hashlib.blake2b(record.value, digest_size=32).digest()
        self._database.execute(
            "INSERT INTO record VALUES (?, ?, ?, ?)",
            (row[0] if row else None, place[2] if place else None, digest, record.value),
        )

    def records(self) -> Iterator[bytes]:
        """Yield the records in the order of the ledger, those without an event in it last."""
        rows = self._database.execute("SELECT value FROM record ORDER BY event IS NULL, event, place, rowid")
        return (value for (value,) in rows)
