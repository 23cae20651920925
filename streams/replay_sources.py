"""Where replay reads a ledger and its decisions: Kafka, up to the present end, or files of JSON lines."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from schemas.codec import InvalidRecordError, decode_decision, decode_event_line
from schemas.kafka_connection import KafkaConnection
from schemas.topics import DECISIONS, LEDGER, topic_name
from streams.cell import LedgerEvent
from streams.kafka_reader import KafkaReader, TopicSlice
from streams.ledger import read_ledger
from streams.replay import DecisionRecord, Verdict, verify

MAX_LINE_BYTES = 64 * 1024 * 1024


class ReplayError(Exception):
    """A ledger or its decisions cannot be read. The message is one line."""


def verify_kafka(kafka: KafkaConnection, topic_prefix: str, cell: str | None = None) -> Verdict:
    """Verify one cell, or all, as they lie on Kafka at this moment; workers may go on meanwhile.

    Raises:
        ReadError: if Kafka does not answer, or not to this client.
        ReplayError: if records of the ledger's beginning are gone.
    """
    with KafkaReader(kafka) as reader:
        ledger_topic = topic_name(topic_prefix, LEDGER)
        settled = reader.slice(ledger_topic)
        decisions = reader.slice(topic_name(topic_prefix, DECISIONS))
        # Read after the decisions' end is known, the ledger holds the cause of each of them.
        ledger = reader.slice(ledger_topic)
        settled_before: dict[str, int] = {}

        def events() -> Iterator[LedgerEvent]:
            for partition, event in _ledger_events(reader, ledger, cell):
                settled_before[event.envelope.event.cell] = settled.high[partition]
                yield event

        return _verify(events(), _decisions(reader, decisions, cell), settled_before)


def verify_files(ledger: Path, decisions: Path, cell: str | None = None) -> Verdict:
    """Verify files that `export` wrote.

    Raises:
        ReplayError: if a file cannot be read, or a line is no event or out of order.
    """
    events = (event for event in read_ledger_file(ledger) if cell in (None, event.envelope.event.cell))
    return _verify(events, _decisions_file(decisions, cell))


def _verify(
    ledger: Iterator[LedgerEvent],
    decisions: Iterator[DecisionRecord],
    settled_before: Mapping[str, int] | None = None,
) -> Verdict:
    try:
        return verify(ledger, decisions, settled_before)
    except sqlite3.Error as error:
        raise ReplayError(f"replay needs room on disk, in TMPDIR or /var/tmp: {error}") from None


def export(
    kafka: KafkaConnection,
    topic_prefix: str,
    ledger_file: Path,
    decisions_file: Path | None = None,
    cell: str | None = None,
) -> tuple[int, int]:
    """Write the ledger, and the decisions if wanted, as JSON lines; return how many of each.

    Of a log that still grows, it is the ledger up to now, and the decisions about that part of it.

    Raises:
        ReadError: if Kafka does not answer, or not to this client.
        ReplayError: if a file cannot be written.
    """
    written_decisions = 0
    last_offsets: dict[str, int] = {}
    with KafkaReader(kafka) as reader:
        ledger = reader.slice(topic_name(topic_prefix, LEDGER))
        with _open(ledger_file, "wb") as file:
            written = 0
            for _, event in _ledger_events(reader, ledger, cell):
                file.write(ledger_line(event))
                last_offsets[event.envelope.event.cell] = event.offset
                written += 1
        if decisions_file is not None:
            decisions = reader.slice(topic_name(topic_prefix, DECISIONS))
            with _open(decisions_file, "wb") as file:
                for record in _decisions(reader, decisions, cell):
                    if _is_later(record, last_offsets):
                        continue
                    # A line break can only be in a record that is no decision; as a space it still is none.
                    file.write(record.value.replace(b"\n", b" ") + b"\n")
                    written_decisions += 1
    return written, written_decisions


def _is_later(record: DecisionRecord, last_offsets: Mapping[str, int]) -> bool:
    """Whether a decision is about an event after the last one of its cell that was written."""
    try:
        decision = decode_decision(record.value)
    except InvalidRecordError:
        return False
    offset = decision.id.removeprefix(f"{decision.cell}-").split("-")[0]
    return offset.isdecimal() and int(offset) > last_offsets.get(decision.cell, -1)


def ledger_line(event: LedgerEvent) -> bytes:
    """An event as a line of a ledger file."""
    return b'{"offset":%d,%s\n' % (event.offset, event.envelope.canonical[1:])


def _stored_event(line: bytes, fields: dict[str, Any]) -> bytes | None:
    """The event's bytes in a line that `export` wrote; None where a line has another form."""
    _, _, rest = line.rstrip().partition(b',"data":')
    stored = rest[:-1]
    try:
        return stored if json.loads(stored) == fields["data"] else None
    except ValueError:
        return None


def read_ledger_file(path: Path) -> Iterator[LedgerEvent]:
    """The events of a ledger file, in its order.

    Raises:
        ReplayError: if the file cannot be read, or a line is no event or out of its cell's order.
    """
    last_offsets: dict[str, int] = {}
    for number, line in _lines(path):
        try:
            fields = json.loads(line)
            offset = fields.pop("offset") if isinstance(fields, dict) else None
            if type(offset) is not int or offset < 0:
                raise InvalidRecordError("no offset from 0 on")
            envelope = replace(decode_event_line(json.dumps(fields)), stored=_stored_event(line, fields))
        except (ValueError, KeyError, RecursionError) as error:
            raise ReplayError(f"{path}:{number}: not a ledger event with an offset: {error}") from None
        cell = envelope.event.cell
        last_offset = last_offsets.get(cell, -1)
        if offset <= last_offset:
            raise ReplayError(f"{path}:{number}: cell {cell}: offset {offset} comes after {last_offset}")
        last_offsets[cell] = offset
        yield LedgerEvent(offset, envelope)


def _ledger_events(
    reader: KafkaReader, ledger: TopicSlice, cell: str | None
) -> Iterator[tuple[int, LedgerEvent]]:
    for partition, low in ledger.low.items():
        if low > 0:
            raise ReplayError(f"{ledger.topic}[{partition}]: the records before offset {low} are gone")
    for record in reader.read(ledger):
        try:
            event = read_ledger(record)
        except InvalidRecordError:
            # The worker passed it over too, and kept it in the dead letters.
            continue
        if cell in (None, event.envelope.event.cell):
            yield record.partition, event


def _decisions(reader: KafkaReader, decisions: TopicSlice, cell: str | None) -> Iterator[DecisionRecord]:
    key = None if cell is None else cell.encode()
    for record in reader.read(decisions):
        if key in (None, record.key):
            place = f"{record.topic}[{record.partition}]@{record.offset}"
            yield DecisionRecord(record.value or b"", place)


def _decisions_file(path: Path, cell: str | None) -> Iterator[DecisionRecord]:
    prefix = b"" if cell is None else b'{"id":"%s-' % cell.encode()
    for number, line in _lines(path):
        if line.startswith(prefix):
            yield DecisionRecord(line, f"{path}:{number}")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with _open(path, "rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise ReplayError(f"{path}:{number}: longer than {MAX_LINE_BYTES} bytes")
            if line.strip():
                yield number, line.rstrip(b"\r\n")


def _open(path: Path, mode: str) -> IO[bytes]:
    try:
        return path.open(mode)
    except OSError as error:
        raise ReplayError(f"{path}: {error.strerror}") from None
