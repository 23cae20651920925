"""Encoding and decoding of events and decisions: CloudEvents' Kafka binding in binary mode, and JSON lines.

The bytes are canonical: fields in the order of the model, no spaces. The hash chain covers these bytes.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Annotated, Any, TypeVar, get_args

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ErrorType

from schemas.base import Event, Identifier, Outcome, Record, UnixTime
from schemas.facts import Facts, quoted
from schemas.registry import DECISION_TYPES, EVENT_TYPES
from schemas.text import plain

MAX_VALUE_BYTES = 1 << 20
MAX_HEADER_BYTES = 1_024
MAX_ATTRIBUTE_LENGTH = 256
MAX_OFFSET = 10**18 - 1
MAX_NAMES = 256
"""Most names in one JSON object: several times those of any event or decision. Each unknown name is a fault
to report, and a megabyte has room for 70,000."""
_LARGE_BYTES = 4_096
"""Length from which on values are searched for repeated names before their model reads them: a bid has about
600 bytes."""
_MAX_FAULTS = 10
"""Most faults that an error describes; it counts the others."""
_LIBRARY_FAULTS = frozenset(get_args(ErrorType))
"""Types of faults that the library names."""
_BOUNDS = {"above_bound": ("max_length", "le", "lt"), "below_bound": ("min_length", "ge", "gt")}
"""Names of bounds in the context of the library's faults."""
SPECVERSION = "1.0"
"""The version of CloudEvents."""
_ATTRIBUTES = ("specversion", "id", "type", "source", "time")
"""Attributes of CloudEvents that are read. Others, such as `subject`, may have any value, and are ignored."""

Headers = Iterable[tuple[str, bytes | None]]

_R = TypeVar("_R", bound=Record)

_text = json.encoder.encode_basestring_ascii
"""Encoder of a text as JSON: an encoder created for each object takes five times as long."""


class InvalidRecordError(ValueError):
    """A record that is not an event. The message states the fault, for a dead letter."""


@dataclass(frozen=True)
class Envelope:
    """An event with its CloudEvents attributes."""

    id: str
    source: str
    time: str
    """RFC 3339, as the producer wrote it; no decision depends on it."""
    event: Event
    stored: bytes | None = field(default=None, repr=False, compare=False)
    """Bytes of the event in the ledger. A later version of its model might encode it otherwise, and the chain
    covers the bytes that were written."""

    @cached_property
    def value(self) -> bytes:
        """The canonical JSON of the event itself: the Kafka record's value."""
        return self.event.model_dump_json().encode() if self.stored is None else self.stored

    @cached_property
    def canonical(self) -> bytes:
        """Attributes and event as one JSON object; the chain covers it after the ledger offset."""
        attributes = (
            f'{{"id":{_text(self.id)},"type":{_text(self.event.TYPE)},"source":{_text(self.source)},'
            f'"time":{_text(self.time)},"data":'
        )
        return attributes.encode() + self.value + b"}"

    def headers(self) -> list[tuple[str, bytes]]:
        """Return the CloudEvents attributes as Kafka headers."""
        return [
            ("ce_specversion", SPECVERSION.encode()),
            ("ce_id", self.id.encode()),
            ("ce_type", self.event.TYPE.encode()),
            ("ce_source", self.source.encode()),
            ("ce_time", self.time.encode()),
            ("content-type", b"application/json"),
        ]


class DecisionEnvelope(Record):
    """The record of a decision: a link of a cell's chained log around one outcome."""

    id: Annotated[str, Field(min_length=1, max_length=MAX_ATTRIBUTE_LENGTH)]
    """`<cell>-<ledger offset>-<index>`."""
    type: Annotated[str, Field(max_length=MAX_ATTRIBUTE_LENGTH)]
    """The CloudEvents type of `data`."""
    cell: Identifier
    cause: Annotated[str, Field(min_length=1, max_length=MAX_ATTRIBUTE_LENGTH)]
    """Id of the event that caused it."""
    time_s: UnixTime | None
    """The cell's clock, not the wall's; null before its first tick."""
    data: dict[str, Any]
    """The outcome."""
    chain: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """BLAKE2b-256(previous chain, ledger line of the event, decision bytes), in hexadecimal."""


@dataclass(frozen=True)
class Decision:
    """One link of a cell's chained log."""

    id: str
    """`<cell>-<ledger offset>-<index>`."""
    cell: str
    cause: str
    """Id of the event that caused it."""
    time_s: float | None
    """The cell's clock, not the wall's; None before its first tick."""
    outcome: Outcome
    chain: str
    """BLAKE2b-256(previous chain, ledger line of the event, decision bytes), in hexadecimal."""
    encoded: bytes | None = field(default=None, repr=False, compare=False)
    """The result of `body`, if it was computed before."""

    @staticmethod
    def body(id: str, cell: str, cause: str, time_s: float | None, outcome: Outcome) -> bytes:
        """Return the canonical JSON of a decision without its chain, which the chain covers."""
        attributes = (
            f'{{"id":{_text(id)},"type":{_text(outcome.TYPE)},"cell":{_text(cell)},"cause":{_text(cause)},'
            f'"time_s":{"null" if time_s is None else repr(time_s)},"data":'
        )
        return attributes.encode() + outcome.model_dump_json().encode()

    @property
    def place(self) -> tuple[int, int]:
        """Ledger offset of the event, and index among the decisions on it.

        Raises:
            InvalidRecordError: the id has another form.
        """
        _, *numbers = self.id.rsplit("-", 2)
        if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
            raise InvalidRecordError(f"{self.id} is not an id of a decision")
        offset, index = map(int, numbers)
        return offset, index

    @cached_property
    def canonical(self) -> bytes:
        """The decision as one JSON object: the Kafka record's value, and a line of a file."""
        body = self.encoded or self.body(self.id, self.cell, self.cause, self.time_s, self.outcome)
        return body + b',"chain":"' + self.chain.encode() + b'"}'

    def headers(self, ce_type: str | None = None) -> list[tuple[str, bytes]]:
        """Return the CloudEvents attributes as Kafka headers; with another type for a record that contains
        the decision."""
        return [
            ("ce_specversion", SPECVERSION.encode()),
            ("ce_id", self.id.encode()),
            ("ce_type", (ce_type or self.outcome.TYPE).encode()),
            ("ce_source", self.cell.encode()),
            ("content-type", b"application/json"),
        ]


def decode_event(value: bytes | None, headers: Headers) -> Envelope:
    """Read an event from a Kafka record in binary mode, or in structured mode if it has no `ce_type`.

    Raises:
        InvalidRecordError: the record is invalid.
    """
    if value is None:
        raise InvalidRecordError("the record has no value")
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidRecordError(f"the value has {len(value)} bytes, at most {MAX_VALUE_BYTES} are read")
    attributes = _attributes(headers)
    if "type" not in attributes:
        return decode_event_line(value)
    if len(value) > _LARGE_BYTES:
        # Before the validation by its model, which notes each unknown name.
        _json_object(value)
        envelope, _ = _envelope(attributes, value)
        return _bounded(envelope)
    try:
        envelope, is_canonical = _envelope(attributes, value)
    except InvalidRecordError:
        _json_object(value)
        raise
    if not is_canonical:
        # Only other forms can have a name twice.
        _json_object(value)
    return _bounded(envelope)


def decode_stored_event(value: bytes | None, headers: Headers, written: Event | None = None) -> Envelope:
    """Read an event from a record that `Envelope.value` and `Envelope.headers` wrote, and keep its bytes.

    Args:
        written: the event of which `value` is the canonical JSON, if this process wrote it.

    Raises:
        InvalidRecordError: the record is invalid, for example in another form than the canonical one.
    """
    attributes = _attributes(headers)
    if value is None or "type" not in attributes:
        raise InvalidRecordError("the record has no value, or no CloudEvents attributes in its headers")
    return _stored_envelope(attributes, value, written)


def decode_ledger_line(line: bytes) -> tuple[int, Envelope]:
    """Read a ledger offset and its event from a line of a ledger file, in canonical form to the byte.

    Raises:
        InvalidRecordError: the line is invalid.
    """
    fields = _json_object(line)
    offset = fields.get("offset")
    if type(offset) is not int or not 0 <= offset <= MAX_OFFSET:
        raise InvalidRecordError("no offset from 0 on")
    # No string contains this: its quotation marks would be escaped.
    _, data, rest = line.partition(b',"data":')
    if not data:
        raise InvalidRecordError("no data")
    envelope = _stored_envelope(fields, rest[:-1])
    if line != b'{"offset":%d,%s' % (offset, envelope.canonical[1:]):
        raise InvalidRecordError(
            "not in canonical form: offset, id, type, source, time and data, in this order and without spaces"
        )
    return offset, envelope


def decode_event_line(line: bytes | str) -> Envelope:
    """Read an event from one JSON object with its CloudEvents attributes and `data`.

    Raises:
        InvalidRecordError: the object is invalid.
    """
    given = _json_object(line)
    fields = {name: value for name, value in given.items() if value is not None}
    if "data_base64" in fields:
        raise InvalidRecordError("data_base64 is not read: give the event as a JSON object under data")
    if "data" not in fields:
        if "data" in given:
            raise InvalidRecordError("data is null: give the event as a JSON object under data")
        raise InvalidRecordError("neither a ce_type header nor a JSON object with type and data")
    envelope, _ = _envelope(fields, _json_bytes(fields.pop("data")))
    return _bounded(envelope)


def decode_decision_record(line: bytes | str) -> DecisionEnvelope:
    """Read the record of a decision, whose type may be unknown, without validating its data.

    Raises:
        InvalidRecordError: the record is invalid.
    """
    try:
        return DecisionEnvelope.model_validate_json(_json_bytes(_json_object(line)))
    except ValidationError as error:
        raise InvalidRecordError(f"no decision: {describe(error)}") from None


def decode_data(record: DecisionEnvelope, model: type[_R]) -> _R:
    """Read the data of a decision as a given type.

    Raises:
        InvalidRecordError: the data are invalid.
    """
    try:
        return model.model_validate_json(_json_bytes(record.data))
    except ValidationError as error:
        raise InvalidRecordError(f"no decision: {describe(error)}") from None


def decode_decision(line: bytes | str) -> Decision:
    """Read a decision from its canonical JSON.

    Raises:
        InvalidRecordError: the record or its data are invalid.
    """
    record = decode_decision_record(line)
    model = DECISION_TYPES.get(record.type)
    if model is None:
        raise InvalidRecordError(f"unknown decision type {record.type!r}")
    outcome = decode_data(record, model)
    return Decision(record.id, record.cell, record.cause, record.time_s, outcome, record.chain)


def describe(error: ValidationError, prefix: str = "") -> str:
    """Return the first faults of a validation error on one line of bounded length, and the number of others.

    With a prefix, the place of a value begins with the name of its environment variable.
    """
    faults = own_faults(error)
    first = "; ".join(
        ": ".join(filter(None, (_place(fault["loc"], prefix), message(fault))))
        for fault in faults[:_MAX_FAULTS]
    )
    further = len(faults) - _MAX_FAULTS
    return _one_line(first, 1_000) + (f"; and {further} more" if further > 0 else "")


def facts_of(error: ValidationError) -> Facts:
    """Return facts of the first fault of a validation error, in words that no library chooses: of a `Fault`
    its own; of another fault the field, and its bound if it is beyond one."""
    fault = own_faults(error)[0]
    word, context = fault["type"], fault.get("ctx", {})
    place: Facts = {"field": quoted(_place(fault["loc"], ""))} if fault["loc"] else {}
    if word not in _LIBRARY_FAULTS:
        return {"case": word, **place, **context}
    for case, names in _BOUNDS.items():
        bound = next((context[name] for name in names if isinstance(context.get(name), int | float)), None)
        if bound is not None:
            return {"case": case, **place, "bound": bound}
    return {"case": "invalid", **place}


def _place(path: Sequence[str | int], prefix: str) -> str:
    if prefix and path:
        path = (f"{prefix}{path[0]}".upper(), *path[1:])
    return ".".join(map(str, path))


def own_faults(error: ValidationError) -> list[ErrorDetails]:
    """Return the faults of an error, without lists that are too short only because of an invalid entry."""
    faults = error.errors(include_url=False, include_input=False)
    above = {fault["loc"][:depth] for fault in faults for depth in range(len(fault["loc"]))}
    return [fault for fault in faults if fault["type"] != "too_short" or fault["loc"] not in above]


def message(fault: ErrorDetails) -> str:
    """Describe a fault without terms of Pydantic."""
    match fault["type"]:
        case "value_error":
            return fault["msg"].removeprefix("Value error, ")
        case "union_tag_invalid":
            known = fault["ctx"]["expected_tags"].replace("'", "")
            return f"kind {fault['ctx']['tag']} is not known, the known ones are {known}"
        case "union_tag_not_found":
            return "no kind is given"
    return fault["msg"]


def _one_line(text: str, length: int) -> str:
    """Return the start of a foreign text, escaped for a header or a line of a log."""
    return plain(text[:length])[:length]


def _attributes(headers: Headers) -> dict[str, str]:
    """Return the CloudEvents attributes among a record's headers, without their prefix.

    A header without a value counts as absent, like null in the JSON format of CloudEvents.
    """
    attributes: dict[str, str] = {}
    for name, raw in headers:
        attribute = name.removeprefix("ce_")
        if raw is None or attribute == name or attribute not in _ATTRIBUTES:
            continue
        if len(raw) > MAX_HEADER_BYTES:
            raise InvalidRecordError(f"header {name} is longer than {MAX_HEADER_BYTES} bytes")
        if attribute in attributes:
            raise InvalidRecordError(f"header {name} is given twice")
        try:
            attributes[attribute] = raw.decode()
        except UnicodeDecodeError:
            raise InvalidRecordError(f"header {name} is not UTF-8") from None
    return attributes


def _json_object(line: bytes | str) -> dict[str, Any]:
    """Read a JSON object more strictly than the standard library: UTF-8 only, without repeated names, and
    with a bounded number of names."""
    try:
        text = line if isinstance(line, str) else line.decode()
        fields = json.loads(text, object_pairs_hook=_distinct_names)
    except (ValueError, RecursionError) as error:
        raise InvalidRecordError(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InvalidRecordError("not a JSON object")
    return fields


def _distinct_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_NAMES:
        raise ValueError(f"an object has {len(pairs)} names, at most {MAX_NAMES} are read")
    fields = dict(pairs)
    if len(fields) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{_one_line(name, 64)} is given twice")
    return fields


def _json_bytes(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except RecursionError:
        raise InvalidRecordError("nested too deeply") from None


def _stored_envelope(attributes: Mapping[str, Any], stored: bytes, written: Event | None = None) -> Envelope:
    """Return the envelope of a stored event, in the canonical form of this version or an earlier one."""
    envelope, is_canonical = _envelope(attributes, stored, written)
    if not is_canonical:
        raise InvalidRecordError(f"{envelope.event.TYPE}: the data are not in canonical form")
    # The form of an earlier version is kept.
    return _bounded(envelope if envelope.value == stored else replace(envelope, stored=stored))


def _bounded(envelope: Envelope) -> Envelope:
    """Return the envelope if its value is short enough for the ledger: defaults and the canonical form of
    numbers may have lengthened it."""
    if len(envelope.value) > MAX_VALUE_BYTES:
        raise InvalidRecordError(
            f"{envelope.event.TYPE}: the value has more than {MAX_VALUE_BYTES} bytes in canonical form"
        )
    return envelope


def _envelope(
    attributes: Mapping[str, Any], value: bytes, written: Event | None = None
) -> tuple[Envelope, bool]:
    """Return the envelope of an event, and whether `value` is canonical in this version or an earlier one.

    `written` is the event of which `value` is the canonical JSON, if available.
    """
    kind = attributes.get("type")
    model = EVENT_TYPES.get(kind) if isinstance(kind, str) else None
    if model is None:
        shown = repr(kind[:128]) if isinstance(kind, str) else "that is no string"
        raise InvalidRecordError(f"unknown event type {shown}")
    if attributes.get("specversion", SPECVERSION) != SPECVERSION:
        raise InvalidRecordError(f"{kind}: only version {SPECVERSION} of CloudEvents is read")
    try:
        id = _attribute(attributes, "id", least_length=1)
        source = _attribute(attributes, "source", least_length=0)
        time = _attribute({"time": "", **attributes}, "time", least_length=0)
        if type(written) is model:
            return Envelope(id, source, time, written, value), True
        event, canonical, is_canonical = parse_event(model, value)
    except ValidationError as error:
        raise InvalidRecordError(f"{kind}: {describe(error)}") from None
    return Envelope(id, source, time, event, canonical), is_canonical


def parse_event(model: type[Event], value: bytes) -> tuple[Event, bytes, bool]:
    """Return an event, its canonical JSON, and whether `value` is canonical in this version of the model or
    in an earlier one that lacked fields."""
    event = model.model_validate_json(value)
    canonical = event.model_dump_json().encode()
    if canonical == value:
        return event, value, True
    return event, canonical, value == event.model_dump_json(exclude_unset=True).encode()


def _attribute(attributes: Mapping[str, Any], name: str, least_length: int) -> str:
    text = attributes.get(name)
    if not isinstance(text, str):
        raise InvalidRecordError(f"{attributes['type']}: attribute {name} is missing or no string")
    if not least_length <= len(text) <= MAX_ATTRIBUTE_LENGTH or not text.isprintable():
        raise InvalidRecordError(
            f"{attributes['type']}: attribute {name} must have {least_length} to {MAX_ATTRIBUTE_LENGTH} "
            "printable characters"
        )
    return text


def rfc3339(timestamp_ms: int) -> str:
    """Return a Unix time in milliseconds as RFC 3339 text, in UTC."""
    return f"{_second(timestamp_ms // 1_000)}.{timestamp_ms % 1_000:03d}Z"


@lru_cache(maxsize=64)
def _second(timestamp_s: int) -> str:
    return datetime.fromtimestamp(timestamp_s, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
