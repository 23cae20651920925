"""Events and decisions to bytes and back: the CloudEvents Kafka binding in binary mode, and JSON lines.

The bytes are canonical: fields in the order of the model, no spaces. They are what the hash chain is over.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from schemas.base import Record
from schemas.registry import DECISION_TYPES, EVENT_TYPES, Event, Outcome

MAX_VALUE_BYTES = 1 << 20
MAX_HEADER_BYTES = 1_024
MAX_ATTRIBUTE_LENGTH = 256

Headers = Iterable[tuple[str, bytes | None]]


class InvalidRecordError(ValueError):
    """A record that is no event. The message says what is wrong, for a dead letter."""


@dataclass(frozen=True)
class Envelope:
    """An event with its CloudEvents attributes."""

    id: str
    source: str
    time: str
    """RFC 3339, as the producer wrote it; no decision depends on it."""
    event: Event

    @cached_property
    def value(self) -> bytes:
        """The canonical JSON of the event itself: the Kafka record's value."""
        return self.event.model_dump_json().encode()

    @cached_property
    def canonical(self) -> bytes:
        """Attributes and event as one JSON object: a line of a ledger file, and what the chain covers."""
        attributes = json.dumps(
            {"id": self.id, "type": self.event.TYPE, "source": self.source, "time": self.time},
            separators=(",", ":"),
        )
        return attributes[:-1].encode() + b',"data":' + self.value + b"}"

    def headers(self) -> list[tuple[str, bytes]]:
        """The CloudEvents attributes as Kafka headers."""
        return [
            ("ce_specversion", b"1.0"),
            ("ce_id", self.id.encode()),
            ("ce_type", self.event.TYPE.encode()),
            ("ce_source", self.source.encode()),
            ("ce_time", self.time.encode()),
            ("content-type", b"application/json"),
        ]


@dataclass(frozen=True)
class Decision:
    """One link of a cell's chained log."""

    id: str
    """`<cell>-<ledger offset>-<index>`."""
    cell: str
    cause: str
    """Id of the event that brought it about."""
    time_s: float | None
    """The cell's clock, not the wall's; None before its first tick."""
    outcome: Outcome
    chain: str
    """BLAKE2b-256(previous chain, event bytes, decision bytes), in hexadecimal."""

    @staticmethod
    def body(id: str, cell: str, cause: str, time_s: float | None, outcome: Outcome) -> bytes:
        """The canonical JSON of a decision, short of its chain: what the chain covers."""
        attributes = json.dumps(
            {"id": id, "type": outcome.TYPE, "cell": cell, "cause": cause, "time_s": time_s},
            separators=(",", ":"),
        )
        return attributes[:-1].encode() + b',"data":' + outcome.model_dump_json().encode()

    @cached_property
    def canonical(self) -> bytes:
        """The whole decision as one JSON object: the Kafka record's value, and a line of a file."""
        body = self.body(self.id, self.cell, self.cause, self.time_s, self.outcome)
        return body + b',"chain":"' + self.chain.encode() + b'"}'

    def headers(self) -> list[tuple[str, bytes]]:
        """The CloudEvents attributes as Kafka headers."""
        return [
            ("ce_specversion", b"1.0"),
            ("ce_id", self.id.encode()),
            ("ce_type", self.outcome.TYPE.encode()),
            ("ce_source", self.cell.encode()),
            ("content-type", b"application/json"),
        ]


def decode_event(value: bytes | None, headers: Headers) -> Envelope:
    """Read an event from a Kafka record in binary mode, or in structured mode where it has no `ce_type`.

    Raises:
        InvalidRecordError: with what is wrong.
    """
    if value is None:
        raise InvalidRecordError("the record has no value")
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidRecordError(f"the value has {len(value)} bytes, at most {MAX_VALUE_BYTES} are read")
    attributes = _attributes(headers)
    if "ce_type" not in attributes:
        return decode_event_line(value)
    return _envelope(
        {name[3:]: text for name, text in attributes.items() if name.startswith("ce_")},
        value,
    )


def decode_event_line(line: bytes | str) -> Envelope:
    """Read an event from one JSON object that holds its CloudEvents attributes and `data`.

    Raises:
        InvalidRecordError: with what is wrong.
    """
    fields = _json_object(line)
    if "data" not in fields:
        raise InvalidRecordError("neither a ce_type header nor a JSON object with type and data")
    data = json.dumps(fields.pop("data")).encode()
    return _envelope(fields, data)


def decode_decision(line: bytes | str) -> Decision:
    """Read a decision from its canonical JSON.

    Raises:
        InvalidRecordError: with what is wrong.
    """
    fields = _json_object(line)
    try:
        model = DECISION_TYPES[fields["type"]]
        outcome = model.model_validate_json(json.dumps(fields["data"]))
        return Decision(
            fields["id"], fields["cell"], fields["cause"], fields["time_s"], outcome, fields["chain"]
        )
    except KeyError as missing:
        raise InvalidRecordError(f"no decision: {missing} is missing or unknown") from None
    except ValidationError as error:
        raise InvalidRecordError(f"no decision: {describe(error)}") from None


def describe(error: ValidationError) -> str:
    """Every fault of a validation error on one line of bounded length, without echoing the input."""
    faults = (
        f"{'.'.join(str(part) for part in fault['loc']) or 'value'}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_input=False, include_context=False)
    )
    return "; ".join(faults)[:1_000]


def _attributes(headers: Headers) -> dict[str, str]:
    attributes: dict[str, str] = {}
    for name, raw in headers:
        if not name.startswith("ce_"):
            continue
        if raw is None or len(raw) > MAX_HEADER_BYTES:
            raise InvalidRecordError(f"header {name[:64]} is empty or longer than {MAX_HEADER_BYTES} bytes")
        try:
            attributes[name] = raw.decode()
        except UnicodeDecodeError:
            raise InvalidRecordError(f"header {name[:64]} is not UTF-8") from None
    return attributes


def _json_object(line: bytes | str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRecordError(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InvalidRecordError("not a JSON object")
    return fields


def _envelope(attributes: Mapping[str, Any], value: bytes) -> Envelope:
    kind = attributes.get("type")
    model: type[Record] | None = EVENT_TYPES.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise InvalidRecordError(f"unknown event type {str(kind)[:128]!r}")
    texts = {}
    for name in ("id", "source", "time"):
        text = attributes.get(name, "" if name == "time" else None)
        if (
            not isinstance(text, str)
            or len(text) > 256
            or not text.isprintable()
            or (name == "id" and not text)
        ):
            raise InvalidRecordError(f"{kind}: attribute id is empty")
        texts[name] = text
    try:
        event = model.model_validate_json(value)
    except ValidationError as error:
        raise InvalidRecordError(f"{kind}: {describe(error)}") from None
    return Envelope(event=event, **texts)  # type: ignore[arg-type]
