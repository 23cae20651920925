"""Validation of input records: each becomes an event for the ledger or a dead letter, which keeps a refused
record with the reason. Pure and total.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from schemas.codec import (
    MAX_HEADER_BYTES,
    MAX_VALUE_BYTES,
    Envelope,
    InvalidRecordError,
    decode_event,
    rfc3339,
)
from schemas.registry import EVENT_TYPES, TOPIC_BY_EVENT, writer_field, writer_of
from schemas.solves import SolveFinished
from schemas.text import plain
from schemas.topics import (
    ESCAPED_HEADER_COUNT_HEADER,
    FLEET,
    HEADER_COUNT_HEADER,
    HEADER_PREFIX,
    OFFSET_HEADER,
    PARTITION_HEADER,
    REASON_HEADER,
    TOPIC_HEADER,
    VALUE_BYTES_HEADER,
)
from streams.cell.rules import RULES, RuleBook
from streams.kafka.records import ReadRecord, SentHeaders, SentRecord, key_partition

MAX_KEPT_VALUE_BYTES = 256 * 1024
MAX_KEPT_HEADERS = 64
MAX_KEPT_HEADER_BYTES = 1_024
"""Most bytes of a kept header, name and value together."""
MAX_KEPT_HEADERS_BYTES = 8 * 1_024
"""Most bytes of all kept headers together, before escaping."""
MAX_REASON_LENGTH = 2_000


TRACE_HEADERS = ("traceparent", "tracestate")
MAX_HEADERS = 256
MAX_KEY_AND_HEADERS_BYTES = 64 * 1_024
"""Most bytes of a record's key and headers together."""
MAX_USUAL_VALUE_BYTES = 128 * 1_024
"""Most bytes of an event that is not in `_LARGE_EVENTS`. The largest are a report of routed tokens of 26 KB,
or of 102 KB with deep indentation, and a bid of 14 KB, or of 73 KB with every character escaped."""
MAX_USUAL_MARKS = 4_096
"""Most commas and opening brackets in such a value, which bound its number of elements. The largest bid has
2,000 in a text, and some 100 between its fields; a report of routed tokens has 1,900."""
_LARGE_EVENTS = frozenset({CellConfigured, SolveFinished})
"""Events that only operators and the solver may write."""
_REPORT_WRITERS = f"{FLEET}/"


def dead_letter(record: ReadRecord, topic: str, reason: str) -> SentRecord:
    """Return the dead letter of a refused record: its bounded bytes, its place, and the reason.

    The length of the value and the number of headers are those of the original, so a cut can be detected. All
    headers are printable: unprintable characters of the record's own headers are escaped, and such headers
    are counted. Key and value are unchanged.
    """
    kept, escaped = _kept(record)
    about: SentHeaders = [
        (TOPIC_HEADER, record.topic.encode()),
        (PARTITION_HEADER, str(record.partition).encode()),
        (OFFSET_HEADER, str(record.offset).encode()),
        (REASON_HEADER, plain(reason[:MAX_REASON_LENGTH])[:MAX_REASON_LENGTH].encode()),
        (VALUE_BYTES_HEADER, str(len(record.value or b"")).encode()),
        (HEADER_COUNT_HEADER, str(len(record.headers)).encode()),
        (ESCAPED_HEADER_COUNT_HEADER, str(escaped).encode()),
    ]
    value = None if record.value is None else record.value[:MAX_KEPT_VALUE_BYTES]
    key = record.key if record.key is None or len(record.key) <= MAX_KEPT_HEADER_BYTES else None
    return SentRecord(topic, key, value, about + kept)


def _kept(record: ReadRecord) -> tuple[SentHeaders, int]:
    """Return the kept headers of a record, and the number of escaped ones among them."""
    kept: SentHeaders = []
    escaped = 0
    left_bytes = MAX_KEPT_HEADERS_BYTES
    for name, value in record.headers[:MAX_KEPT_HEADERS]:
        if value is None or name.startswith(HEADER_PREFIX):
            continue
        # Escaping never shortens a header and is slow, so a header that is too long is skipped before it.
        came_bytes = len(name) + len(value)
        if came_bytes > min(MAX_KEPT_HEADER_BYTES, left_bytes):
            continue
        left_bytes -= came_bytes
        shown = plain(name), plain(value.decode(errors="backslashreplace")).encode()
        if len(shown[0].encode()) + len(shown[1]) <= MAX_KEPT_HEADER_BYTES:
            kept.append(shown)
            escaped += shown != (name, value)
    return kept, escaped


@dataclass(frozen=True)
class IntakeTopic:
    """The valid events of an input topic, and the topic of its dead letters."""

    events: tuple[type[Event], ...]
    dead_letters: str
    in_own_partition: bool = False
    """Whether records must be in the partition of their cell. Reports of nodes are compared with the clock,
    which one worker must do for all of a cell."""

    def excess(self, value: bytes) -> str | None:
        """Return the bound that a value exceeds; None if none. It spares the slow validation of large
        values."""
        usual = _LARGE_EVENTS.isdisjoint(self.events)
        most_bytes = MAX_USUAL_VALUE_BYTES if usual else MAX_VALUE_BYTES
        if len(value) > most_bytes:
            return f"the value has {len(value)} bytes, at most {most_bytes} are read here"
        if not usual or len(value) <= MAX_USUAL_MARKS:
            return None
        marks = sum(value.count(mark) for mark in (b",", b"[", b"{"))
        if marks > MAX_USUAL_MARKS:
            return (
                f"the value has {marks} commas and opening brackets, at most {MAX_USUAL_MARKS} are read "
                "here: no event has so many elements"
            )
        return None


@dataclass(frozen=True, slots=True)
class Claim:
    """Cell, writer and type of an event, as a record claims them before it is fully validated."""

    cell: str
    writer: str
    """Writer of the event, as `writer_of` returns it."""
    type: type[Event]

    @classmethod
    def of(cls, event: Event) -> "Claim":
        return cls(event.cell, writer_of(event), type(event))

    @property
    def node(self) -> str | None:
        """The reporting node; None if the event is not a node's report."""
        is_report = self.writer.startswith(_REPORT_WRITERS)
        return self.writer.removeprefix(_REPORT_WRITERS) if is_report else None


@dataclass(frozen=True, slots=True)
class Accepted:
    """An event, and its ledger record."""

    event: Event
    record: SentRecord


_SCALAR = rb'(?>"[^"\\]*+"|[-+.0-9eE]++|true|false|null)'
"""Pattern of a JSON value that is not nested and has no escapes."""


@cache
def _leading(field: str) -> re.Pattern[bytes]:
    """Return the pattern of a JSON object up to a field with a text, with scalars alone before it."""
    pairs = rb'(?:\s*+"\w++"\s*+:\s*+' + _SCALAR + rb"\s*+,)*?"
    return re.compile(rb"\s*+\{" + pairs + rb'\s*+"' + field.encode() + rb'"\s*+:\s*+"([^"\\]*+)"')


def _leading_field(value: bytes, field: str) -> str | None:
    """Return a text of a JSON object before its first nested field; None without one. Canonical events begin
    with their cell and their writer."""
    found = _leading(field).match(value)
    try:
        return None if found is None else found[1].decode()
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True)
class Intake:
    """Validates records and makes ledger records of them."""

    inputs: Mapping[str, IntakeTopic]
    """Input topics, by full name."""
    ledger: str
    cells: frozenset[str]
    """The cells that this deployment serves."""
    max_tick_ahead_s: float
    """Most time of a tick after its record's timestamp; infinite for simulated clocks."""
    partitions: int
    """Number of partitions of the ledger and of each input topic."""
    book: RuleBook = RULES
    """The rules that a configuration may name."""

    def claim(self, record: ReadRecord) -> Claim | None:
        """Return the claim of a record, by which it is queued: far cheaper than `admit`, as the JSON is not
        parsed.

        None if `admit` must decide: the record is not in binary mode, does not belong on its topic, has
        nested fields or escapes before its cell and writer, or names a cell that is not served.
        """
        if self._excess(record) is not None:
            return None
        kind = next((value for name, value in record.headers if name == "ce_type"), None)
        model = EVENT_TYPES.get((kind or b"").decode(errors="replace"))
        if model not in self.inputs[record.topic].events:
            return None
        value, topic = record.value or b"", TOPIC_BY_EVENT[model]
        cell, field = _leading_field(value, "cell"), writer_field(topic)
        name = "" if field is None else _leading_field(value, field)
        if cell not in self.cells or name is None:
            return None
        return Claim(cell, topic if field is None else f"{topic}/{name}"[:MAX_HEADER_BYTES], model)

    def admit(self, record: ReadRecord) -> Accepted | SentRecord:
        """Return the event of `record`, or a dead letter with the reason. Never raises for any content.

        Raises:
            KeyError: the record is not of an input topic, an error of the caller.
        """
        topic = self.inputs[record.topic]
        try:
            envelope = self._validated(record, topic)
        except InvalidRecordError as refusal:
            return self.refuse(record, str(refusal))
        except Exception as error:  # a hostile record must not stop the others
            return self.refuse(record, f"unexpected {type(error).__name__}: {error}")
        traced = {
            name: value
            for name, value in record.headers
            if name in TRACE_HEADERS and value is not None and len(value) <= MAX_HEADER_BYTES
        }
        return Accepted(envelope.event, self.ledger_record(envelope, [*traced.items()]))

    def refuse(self, record: ReadRecord, reason: str) -> SentRecord:
        """Return the dead letter of a record of an input topic."""
        return dead_letter(record, self.inputs[record.topic].dead_letters, reason)

    def ledger_record(self, envelope: Envelope, further_headers: SentHeaders | None = None) -> SentRecord:
        cell = envelope.event.cell
        headers = envelope.headers() + (further_headers or [])
        return SentRecord(self.ledger, cell.encode(), envelope.value, headers, self.partition_of(cell))

    def partition_of(self, cell: str) -> int:
        """Return the partition of a cell, by the key and the partitioner of Kafka's own clients."""
        return key_partition(cell, self.partitions)

    def _excess(self, record: ReadRecord) -> str | None:
        """Return the bound that a record exceeds; None if none."""
        if len(record.headers) > MAX_HEADERS:
            return f"there are {len(record.headers)} headers, at most {MAX_HEADERS} are read"
        value = record.value or b""
        rest_bytes = record.size_bytes - len(value)
        if rest_bytes > MAX_KEY_AND_HEADERS_BYTES:
            return f"key and headers have {rest_bytes} bytes, at most {MAX_KEY_AND_HEADERS_BYTES} are read"
        return self.inputs[record.topic].excess(value)

    def _validated(self, record: ReadRecord, topic: IntakeTopic) -> Envelope:
        excess = self._excess(record)
        if excess is not None:
            raise InvalidRecordError(excess)
        envelope = decode_event(record.value, record.headers)
        event = envelope.event
        if not isinstance(event, topic.events):
            raise InvalidRecordError(f"{event.TYPE} does not belong on {record.topic}")
        if event.cell not in self.cells:
            raise InvalidRecordError(f"cell {event.cell} is not served here")
        own = self.partition_of(event.cell)
        if topic.in_own_partition and record.partition != own:
            raise InvalidRecordError(
                f"it lies in partition {record.partition}, and {event.TYPE} of cell {event.cell} belongs in "
                f"{own}: key records by cell, with the partitioner of Kafka's own clients (murmur2)"
            )
        if isinstance(event, CellConfigured) and self.book.get(event.rules) is None:
            raise InvalidRecordError(f"the configuration names {self.book.lack_of(event.rules)}")
        if isinstance(event, ClockTicked):
            self._refuse_future(event.time_s, record.timestamp_ms)
        if not envelope.time and record.timestamp_ms is not None:
            envelope = replace(envelope, time=rfc3339(record.timestamp_ms))
        return envelope

    def _refuse_future(self, time_s: float, timestamp_ms: int | None) -> None:
        """Refuse a tick that is too far ahead of its record's timestamp; no timestamp counts as 0.

        A cell's clock never goes back, so one tick from a far future would pass every deadline for good. On
        input topics the timestamp is the broker's. Workers with a simulated clock, which may run ahead of
        the wall clock, are started without a limit.
        """
        ahead_s = time_s - (timestamp_ms or 0) / 1_000
        if ahead_s > self.max_tick_ahead_s:
            raise InvalidRecordError(
                f"the tick is {ahead_s:.0f} s ahead of its record's timestamp, at most "
                f"{self.max_tick_ahead_s:g} s are allowed"
            )
