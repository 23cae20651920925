"""Where replay reads a ledger and its decisions: Kafka, up to the present end, or files of JSON lines."""

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from schemas.codec import InvalidRecordError, decode_decision, decode_event_line
from schemas.topics import DECISIONS, LEDGER, topic_name
from streams.cell import LedgerEvent
from streams.kafka_records import read_record
from streams.ledger import read_ledger
from streams.records import ReadRecord
from streams.replay import DecisionRecord, Verdict, verify

MAX_LINE_BYTES = 64 * 1024 * 1024
_POLL_S = 10.0
_PASSING = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._TRANSPORT,
}
_PATIENCE_S = 10.0
"""How long a question is asked again while a partition is without its leader."""
_RETRY_AFTER_S = 0.1


class ReplayError(Exception):
    """A ledger or its decisions cannot be read. The message is one line."""


@dataclass(frozen=True)
class TopicSlice:
    """The part of a topic that exists at one moment."""

    topic: str
    low: Mapping[int, int]
    high: Mapping[int, int]
    """By partition; exclusive."""


def verify_kafka(bootstrap_servers: str, topic_prefix: str, cell: str | None = None) -> Verdict:
    """Verify one cell, or all, as they lie on Kafka at this moment; workers may go on meanwhile.

    Raises:
        ReplayError: if Kafka does not answer, or records of the ledger's beginning are gone.
    """
    with KafkaReader(bootstrap_servers) as reader:
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
    bootstrap_servers: str,
    topic_prefix: str,
    ledger_file: Path,
    decisions_file: Path | None = None,
    cell: str | None = None,
) -> tuple[int, int]:
    """Write the ledger, and the decisions if wanted, as JSON lines; return how many of each.

    Of a log that still grows, it is the ledger up to now, and the decisions about that part of it.

    Raises:
        ReplayError: if Kafka does not answer, or a file cannot be written.
    """
    written_decisions = 0
    last_offsets: dict[str, int] = {}
    with KafkaReader(bootstrap_servers) as reader:
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


class KafkaReader:
    """Reads slices of topics without joining a group or committing anything."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "millrace-replay",  # demanded by the client, used for nothing
                "enable.auto.commit": False,
                "enable.partition.eof": False,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )

    def __enter__(self) -> "KafkaReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def slice(self, topic: str) -> TopicSlice:
        """What `topic` holds now.

        Raises:
            ReplayError: if Kafka does not answer or the topic is missing.
        """
        found = self._ask(lambda: self._consumer.list_topics(topic, timeout=_POLL_S).topics[topic])
        if found.error is not None:
            raise ReplayError(f"topic {topic}: {found.error.str()}")
        watermarks = {partition: self._watermarks(topic, partition) for partition in sorted(found.partitions)}
        return TopicSlice(
            topic,
            {partition: low for partition, (low, _) in watermarks.items()},
            {partition: high for partition, (_, high) in watermarks.items()},
        )

    def read(self, part: TopicSlice) -> Iterator[ReadRecord]:
        """Every record of `part`, partition by partition.

        Raises:
            ReplayError: if Kafka does not answer.
        """
        for partition, high in part.high.items():
            position = part.low[partition]
            self._consumer.assign([TopicPartition(part.topic, partition, position)])
            while position < high:
                message: Any = self._consumer.poll(_POLL_S)
                if message is None:
                    raise ReplayError(
                        f"{part.topic}[{partition}]@{position}: no record within {_POLL_S:.0f} s"
                    )
                if message.error() is not None:
                    raise ReplayError(f"{part.topic}[{partition}]@{position}: {message.error().str()}")
                position = message.offset() + 1
                if message.offset() < high:
                    yield read_record(message)

    def _watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        low, high = self._ask(lambda: self._consumer.get_watermark_offsets(place, timeout=_POLL_S))
        return low, high

    def _ask(self, question: Callable[[], Any]) -> Any:
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return question()
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if reason.code() not in _PASSING or time.monotonic() > deadline_s:
                    raise ReplayError(f"Kafka at {self._bootstrap_servers}: {reason.str()}") from None
                time.sleep(_RETRY_AFTER_S)


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
