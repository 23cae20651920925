"""Files of entries as people write them, YAML or JSON lines; each fault with its file and line."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from schemas.base import MAX_MICROS

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_ENTRIES = 100_000
MAX_DEPTH = 16
STANDARD_INPUT = "-"
_JSON_LINES = (".jsonl", ".ndjson")
_MICROS_PER_UNIT = 1_000_000

Place = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


class EntriesFileError(ValueError):
    """A file that does not hold what is asked for. The message is one line that names file and line."""


@dataclass(frozen=True)
class Entry:
    """One entry as it is written."""

    file: str
    fields: dict[str, Any]
    line: int
    lines: dict[Place, int]
    """Of its fields, where they are known."""

    def parse(self, model: type[Model], fields: dict[str, Any]) -> Model:
        """The model that `fields` make: the entry's own, with the conveniences worked out.

        Raises:
            EntriesFileError: they make none.
        """
        try:
            # By way of JSON, which the strict models are made for.
            return model.model_validate_json(json.dumps(fields, allow_nan=False))
        except ValidationError as error:
            faults = error.errors(include_url=False, include_input=False, include_context=False)
            # A field that is written wrong is also missed under its right name: say the former.
            fault = min(faults, key=lambda fault: fault["type"] != "extra_forbidden")
            raise self.fault(fault["loc"], fault["msg"]) from None
        except (TypeError, ValueError) as error:
            raise EntriesFileError(f"{self.file}:{self.line}: {error}") from None

    def with_micros(self, fields: dict[str, Any], *names: str) -> dict[str, Any]:
        """`fields` with each amount in units of money under a name put as `<name>_micros`, to six decimals.

        Raises:
            EntriesFileError: one is no amount, or is given in both ways.
        """
        changed = dict(fields)
        for name in names:
            if name not in fields:
                continue
            if f"{name}_micros" in fields:
                raise self.fault((name,), f"give either {name} or {name}_micros")
            changed[f"{name}_micros"] = self._micros(name, changed.pop(name))
        return changed

    def fault(self, place: Place, message: str) -> EntriesFileError:
        """An error about a field, with the line of the nearest thing around it that has one."""
        known = next(
            (
                self.lines[place[:length]]
                for length in range(len(place), 0, -1)
                if place[:length] in self.lines
            ),
            self.line,
        )
        return EntriesFileError(f"{self.file}:{known}: {'.'.join(map(str, place))}: {message}")

    def _micros(self, name: str, amount: Any) -> int:
        try:
            if isinstance(amount, bool) or not isinstance(amount, int | float | str):
                raise InvalidOperation
            micros = Decimal(str(amount)) * _MICROS_PER_UNIT
            whole = micros.is_finite() and micros == micros.to_integral_value()
            if not (whole and 0 <= micros <= MAX_MICROS):
                raise InvalidOperation
        except ArithmeticError:
            most = MAX_MICROS // _MICROS_PER_UNIT
            raise self.fault((name,), f"not an amount from 0 to {most}, to six decimals") from None
        return int(micros)


def read_entries(file: str, kind: str) -> list[Entry]:
    """Read the entries of a file, or of standard input for `-`; `kind` names one of them in errors.

    Raises:
        EntriesFileError: the file cannot be read, is too large, or holds no mappings.
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
        return content.decode()
    except OSError as error:
        raise EntriesFileError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise EntriesFileError(f"{file}: not UTF-8: {error.reason} at byte {error.start}") from None


def _json_entries(file: str, content: str) -> Iterator[Entry]:
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield Entry(file, json.loads(line, object_pairs_hook=_unique), number, {})
        except (ValueError, RecursionError) as error:
            raise EntriesFileError(f"{file}:{number}: not JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is given twice")
    return fields


def _yaml_entries(file: str, content: str) -> Iterator[Entry]:
    try:
        _refuse_bombs(file, content)
        root = yaml.compose(content, Loader=yaml.SafeLoader)
        document = yaml.safe_load(content)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise EntriesFileError(f"{file}:{line}: not YAML: {error.problem or error.context}") from None
    except EntriesFileError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise EntriesFileError(f"{file}: not YAML: {' '.join(str(error).split())}") from None
    if root is None:
        return
    nodes = root.value if isinstance(root, yaml.SequenceNode) else [root]
    values = document if isinstance(document, list) else [document]
    for node, value in zip(nodes, values, strict=True):
        yield Entry(file, value, node.start_mark.line + 1, dict(_lines(file, node, ())))


def _refuse_bombs(file: str, content: str) -> None:
    """Aliases may blow a small file up to any size, and deep nesting exhausts the stack."""
    depth = 0
    for event in yaml.parse(content, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise EntriesFileError(f"{file}:{event.start_mark.line + 1}: aliases are not allowed")
        if depth > MAX_DEPTH:
            raise EntriesFileError(f"{file}:{event.start_mark.line + 1}: nested deeper than {MAX_DEPTH}")


def _lines(file: str, node: yaml.Node, place: Place) -> Iterator[tuple[Place, int]]:
    """The line of each field. Of a key given twice YAML would silently keep the last."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                raise EntriesFileError(f"{file}:{key.start_mark.line + 1}: {key.value} is given twice")
            seen.add(key.value)
            yield (*place, key.value), key.start_mark.line + 1
            yield from _lines(file, value, (*place, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*place, index), item.start_mark.line + 1
            yield from _lines(file, item, (*place, index))
