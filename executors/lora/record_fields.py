"""JSON of a dataset's line, and its fields: errors name the field and its fault."""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

MAX_RECORD_BYTES = 1 << 20
"""Longest line of a dataset."""
_MOST_DIGITS = 4_300
"""Most digits of a number; Python refuses to convert longer ones."""
_MOST_NAMES = 8
"""Most fields that an error names."""
_MOST_NAME_LENGTH = 64
_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "true or false", type(None): "null"}


def read_json(line: bytes) -> object:
    """Read a line as strict JSON (RFC 8259) in UTF-8: no duplicate keys, no NaN.

    Raises:
        ValueError: the message states the fault.
    """
    if b"\0" in line:
        raise ValueError("has a NUL byte: the file is damaged, or is not UTF-8 text")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise ValueError(
            f"not UTF-8: byte 0x{byte:02x} at position {error.start + 1}: save the file as UTF-8"
        ) from error
    try:
        return json.loads(
            text, object_pairs_hook=_distinct, parse_constant=_refuse_constant, parse_int=_whole_number
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("not JSON that can be read: it is nested too deeply") from error


def kind_of(value: object) -> str:
    """Return JSON's name for the type of a value."""
    return _KINDS.get(type(value), "a number")


def required_text(fields: Mapping[str, Any], name: str, where: str = "") -> str:
    """Return a field's string, which is not empty.

    Args:
        where: prefix of the name in the error, such as `messages[0].`.

    Raises:
        ValueError: it is missing, of another kind, empty, or has characters that no text file has.
    """
    text = optional_text(fields, name, where)
    if text is None:
        raise ValueError(f"{where}{name}: is missing")
    if not text:
        raise ValueError(f"{where}{name}: is empty")
    return text


def optional_text(fields: Mapping[str, Any], name: str, where: str = "") -> str | None:
    """Return a field's string, which may be empty; None if the field is missing."""
    if name not in fields:
        return None
    text = fields[name]
    if not isinstance(text, str):
        raise ValueError(f"{where}{name}: is {kind_of(text)}, expected a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ord(text[error.start])
        raise ValueError(
            f"{where}{name}: has half of a surrogate pair (\\u{half:04x}) at character {error.start + 1}: "
            "an emoji was cut in two"
        ) from error
    if "\0" in text:
        at = text.index("\0") + 1
        raise ValueError(f"{where}{name}: has a NUL character (\\u0000) at character {at}")
    return text


def refuse_unknown(fields: Mapping[str, Any], known: Collection[str], where: str = "") -> None:
    """Check that there are no other fields.

    Raises:
        ValueError: there is another field.
    """
    unknown = [name for name in fields if name not in known]
    if unknown:
        remedy = "" if where else ": remove it, or name the fields to read in dataset.columns"
        raise ValueError(f"{where}{shown(unknown[0])}: unknown field{remedy}")


def shown(name: str) -> str:
    """Return a field's name for an error: short, and on one line."""
    return ascii(name)[1:-1][:_MOST_NAME_LENGTH] or "(a field without a name)"


def listed(names: Collection[str]) -> str:
    """Return some names for an error."""
    first = ", ".join(shown(name) for name in list(names)[:_MOST_NAMES])
    return f"{first}, ..." if len(names) > _MOST_NAMES else first or "none"


def as_object(fields: object, example: str) -> Mapping[str, Any]:
    """Return the fields of a JSON object.

    Raises:
        ValueError: it is not an object.
    """
    if not isinstance(fields, dict):
        raise ValueError(f"is {kind_of(fields)}, expected a JSON object such as {example}")
    return fields


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"{shown(twice)}: is given twice")
    return fields


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"not JSON: {name} is not a JSON number")


def _whole_number(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"has a number of {len(digits)} digits")
    return int(digits)
