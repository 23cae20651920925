"""Files of entries that users write, in YAML or JSON lines; each error names file and line."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from infra.text import MICROS_PER_UNIT
from schemas.base import MAX_MICROS
from schemas.codec import message
from schemas.errors import ReadableError
from streams.worker.bounded_yaml import (
    MAX_NUMBER_CHARACTERS,
    Lines,
    LocatedLine,
    Place,
    YamlFaultError,
    place_of_non_finite,
    read_yaml,
    shown,
)

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_ENTRIES = 100_000
MAX_DEPTH = 16
STANDARD_INPUT = "-"
_JSON_LINES = (".jsonl", ".ndjson")
_AMOUNT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
"""Form of an amount as text. Python also reads `1_000`, digits of other scripts, and `0100`, which YAML 1.1
reads as 64."""

Model = TypeVar("Model", bound=BaseModel)


class EntriesFileError(ReadableError):
    """An invalid file of entries. The message is one line that names file and line."""


@dataclass(frozen=True)
class Entry:
    """One entry of a file."""

    file: str
    fields: dict[str, Any]
    line: int
    parts: Lines
    """Lines of its fields; None where all are on the entry's own line."""

    def parse(self, model: type[Model], fields: dict[str, Any]) -> Model:
        """Return the model of `fields`, which are the entry's own in the form of the model.

        Raises:
            EntriesFileError: the fields are invalid.
        """
        try:
            # Through JSON, as the models are strict.
            return model.model_validate_json(json.dumps(fields, allow_nan=False))
        except ValidationError as error:
            faults = error.errors(include_url=False, include_input=False)
            # A misspelled field is also missing under its right name: report the misspelled one.
            fault = min(faults, key=lambda fault: fault["type"] != "extra_forbidden")
            raise self.fault(fault["loc"], message(fault)) from None
        except (TypeError, ValueError, RecursionError) as error:
            if isinstance(error, ValueError) and (place := place_of_non_finite(fields)) is not None:
                raise self.fault(place, "Input should be a finite number") from None
            raise EntriesFileError(f"{self.file}:{self.line}: {error}") from None

    def with_micros(self, fields: dict[str, Any], *names: str, inside: Place = ()) -> dict[str, Any]:
        """Return `fields` with each amount in units of money, to six decimals, as `<name>_micros`.

        Args:
            fields: Fields of the entry, or of an object in it.
            names: Names of the amounts; a field may be missing.
            inside: Place of the fields in the entry.

        Raises:
            EntriesFileError: an amount is invalid, or given in both forms.
        """
        changed = dict(fields)
        for name in names:
            if name not in fields:
                continue
            if f"{name}_micros" in fields:
                raise self.fault((*inside, name), f"give either {name} or {name}_micros")
            changed[f"{name}_micros"] = self._micros((*inside, name), changed.pop(name))
        return changed

    def fault(self, place: Place, message: str) -> EntriesFileError:
        """Return an error about a field, with the line of the field or of the nearest object around it."""
        line, parts = self.line, self.parts
        for part in place:
            try:
                line, parts = cast(Any, parts)[part]  # a mapping, a list, or neither
            except (TypeError, LookupError):
                continue  # a part that is not in the file, such as the kind of a union
        return EntriesFileError(
            f"{self.file}:{line}: {'.'.join(shown(str(part)) for part in place)}: {message}"
        )

    def _micros(self, place: Place, amount: Any) -> int:
        try:
            if isinstance(amount, bool) or not isinstance(amount, int | float | str):
                raise InvalidOperation
            if isinstance(amount, str) and _AMOUNT.fullmatch(amount) is None:
                raise InvalidOperation
            micros = Decimal(str(amount)) * MICROS_PER_UNIT
            whole = micros.is_finite() and micros == micros.to_integral_value()
            if not (whole and 0 <= micros <= MAX_MICROS):
                raise InvalidOperation
        except ArithmeticError:
            most = MAX_MICROS // MICROS_PER_UNIT
            raise self.fault(place, f"not an amount from 0 to {most}, to six decimals") from None
        return int(micros)


def read_entries(file: str, kind: str) -> list[Entry]:
    """Read the entries of a file, or of standard input for `-`; `kind` names one of them in errors.

    Raises:
        EntriesFileError: the file cannot be read, is too large, or has entries that are not mappings.
    """
    content = _read(file)
    name = "standard input" if file == STANDARD_INPUT else file
    json_lines = Path(file).suffix in _JSON_LINES or (file == STANDARD_INPUT and content.lstrip()[:1] == "{")
    entries = list(_json_entries(name, content) if json_lines else _yaml_entries(name, content))
    if not entries:
        raise EntriesFileError(f"{name}: holds no {kind}")
    if len(entries) > MAX_ENTRIES:
        raise EntriesFileError(f"{name}: more than {MAX_ENTRIES} entries")
    for entry in entries:
        if not isinstance(entry.fields, dict):
            raise EntriesFileError(f"{name}:{entry.line}: a {kind} is a mapping of its fields")
    return entries


def _read(file: str) -> str:
    try:
        if file == STANDARD_INPUT:
            content = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with Path(file).open("rb") as source:
                content = source.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise EntriesFileError(f"{file}: larger than {MAX_FILE_BYTES} bytes")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise EntriesFileError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise EntriesFileError(f"{file}: not UTF-8: {error.reason} at byte {error.start}") from None


def _json_entries(file: str, content: str) -> Iterator[Entry]:
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line, object_pairs_hook=_unique, parse_int=_bounded_int)
            yield Entry(file, fields, number, None)
        except (ValueError, RecursionError) as error:
            raise EntriesFileError(f"{file}:{number}: not JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is given twice")
    return fields


def _bounded_int(digits: str) -> int:
    if len(digits) > MAX_NUMBER_CHARACTERS:
        raise ValueError(f"a number of {len(digits)} characters: at most {MAX_NUMBER_CHARACTERS} are read")
    return int(digits)


def _yaml_entries(file: str, content: str) -> Iterator[Entry]:
    try:
        document = read_yaml(content, MAX_DEPTH)
    except YamlFaultError as error:
        place = file if error.line is None else f"{file}:{error.line}"
        raise EntriesFileError(f"{place}: {error}") from None
    if document is None:
        return
    value, located = document
    values, places = (value, located.parts) if isinstance(value, list) else ([value], [located])
    for entry, at in zip(values, cast(list[LocatedLine], places), strict=True):
        yield Entry(file, entry, *at)
