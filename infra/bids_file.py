"""Bids as people write them, YAML or JSON lines, many at a time; each fault with its file and line."""

import json
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from schemas.base import MAX_MICROS
from schemas.jobs import JobQuoteRequested, JobSubmitted

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_BIDS = 100_000
MAX_DEPTH = 16
STANDARD_INPUT = "-"
_JSON_LINES = (".jsonl", ".ndjson")
_MICROS_PER_UNIT = 1_000_000

Request = TypeVar("Request", JobSubmitted, JobQuoteRequested)


class BidsFileError(ValueError):
    """A file that holds no valid bids. The message is one line that names file and line."""


@dataclass(frozen=True)
class _Entry:
    """One bid as it is written, and the lines of its fields."""

    fields: Any
    line: int
    lines: dict[tuple[str | int, ...], int]


def read_bids(file: str, now_s: float, default_cell: str | None = None) -> list[JobSubmitted]:
    """Read the bids of a file, or of standard input for `-`.

    Beside the fields of `JobSubmitted`, a bid may say `bid` (units of money, to six decimals) in place of
    `bid_micros`, and its task `deadline_in_s` (from `now_s` on) in place of `deadline_s`; a job without id
    is given one, and one without cell is for `default_cell`.

    Raises:
        BidsFileError: the file cannot be read, is too large, or an entry is no bid.
    """
    return [
        _parse(file, entry, JobSubmitted, _bid_fields(file, entry, now_s, default_cell))
        for entry in _entries(file)
    ]


def read_quote_requests(file: str, now_s: float, default_cell: str | None = None) -> list[JobQuoteRequested]:
    """Read the same files as requests for a quote: who bids, how much, and under what id does not matter.

    Raises:
        BidsFileError: as `read_bids`.
    """
    requests = []
    for entry in _entries(file):
        fields = _bid_fields(file, entry, now_s, default_cell)
        for name in ("bid_micros", "user", "job_id"):
            fields.pop(name, None)
        fields.setdefault("quote_id", f"quote-{uuid.uuid4().hex[:12]}")
        requests.append(_parse(file, entry, JobQuoteRequested, fields))
    return requests


def _bid_fields(file: str, entry: _Entry, now_s: float, default_cell: str | None) -> dict[str, Any]:
    """The fields of an entry with the conveniences worked out."""
    if not isinstance(entry.fields, dict):
        raise BidsFileError(f"{file}:{entry.line}: a bid is a mapping of its fields")
    fields = dict(entry.fields)
    if "bid" in fields:
        if "bid_micros" in fields:
            raise _fault(file, entry, ("bid",), "give either bid or bid_micros")
        fields["bid_micros"] = _micros(file, entry, fields.pop("bid"))
    fields.setdefault("job_id", f"job-{uuid.uuid4().hex[:12]}")
    if default_cell is not None:
        fields.setdefault("cell", default_cell)
    task = fields.get("task")
    if isinstance(task, dict) and "deadline_in_s" in task:
        task = dict(task)
        if "deadline_s" in task:
            raise _fault(file, entry, ("task", "deadline_in_s"), "give either deadline_in_s or deadline_s")
        seconds = task.pop("deadline_in_s")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise _fault(file, entry, ("task", "deadline_in_s"), "not a number of seconds")
        fields["task"] = {**task, "deadline_s": now_s + seconds}
    return fields


def _micros(file: str, entry: _Entry, bid: Any) -> int:
    try:
        if isinstance(bid, bool) or not isinstance(bid, int | float | str):
            raise InvalidOperation
        micros = Decimal(str(bid)) * _MICROS_PER_UNIT
        if not (micros.is_finite() and 0 <= micros <= MAX_MICROS and micros == micros.to_integral_value()):
            raise InvalidOperation
    except ArithmeticError:
        raise _fault(
            file,
            entry,
            ("bid",),
            f"not an amount from 0 to {MAX_MICROS // _MICROS_PER_UNIT}, to six decimals",
        ) from None
    return int(micros)


def _parse(file: str, entry: _Entry, model: type[Request], fields: dict[str, Any]) -> Request:
    try:
        # By way of JSON, which the strict models are made for.
        return model.model_validate_json(json.dumps(fields, allow_nan=False))
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        # A field that is written wrong is also missed under its right name: say the former.
        fault = min(faults, key=lambda fault: fault["type"] != "extra_forbidden")
        raise _fault(file, entry, fault["loc"], fault["msg"]) from None
    except (TypeError, ValueError) as error:
        raise BidsFileError(f"{file}:{entry.line}: {error}") from None


def _fault(file: str, entry: _Entry, place: tuple[str | int, ...], message: str) -> BidsFileError:
    known = next(
        (entry.lines[place[:length]] for length in range(len(place), 0, -1) if place[:length] in entry.lines),
        entry.line,
    )
    return BidsFileError(f"{file}:{known}: {'.'.join(map(str, place))}: {message}")


def _entries(file: str) -> list[_Entry]:
    content = _read(file)
    name = "standard input" if file == STANDARD_INPUT else file
    json_lines = Path(file).suffix in _JSON_LINES or (file == STANDARD_INPUT and content.lstrip()[:1] == "{")
    entries = list(_json_entries(name, content) if json_lines else _yaml_entries(name, content))
    if not entries:
        raise BidsFileError(f"{name}: holds no bid")
    if len(entries) > MAX_BIDS:
        raise BidsFileError(f"{name}: more than {MAX_BIDS} bids")
    return entries


def _read(file: str) -> str:
    try:
        if file == STANDARD_INPUT:
            content = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with Path(file).open("rb") as source:
                content = source.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise BidsFileError(f"{file}: larger than {MAX_FILE_BYTES} bytes")
        return content.decode()
    except OSError as error:
        raise BidsFileError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BidsFileError(f"{file}: not UTF-8: {error.reason} at byte {error.start}") from None


def _json_entries(file: str, content: str) -> Iterator[_Entry]:
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield _Entry(json.loads(line, object_pairs_hook=_unique), number, {})
        except (ValueError, RecursionError) as error:
            raise BidsFileError(f"{file}:{number}: not JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is given twice")
    return fields


def _yaml_entries(file: str, content: str) -> Iterator[_Entry]:
    try:
        _refuse_bombs(file, content)
        root = yaml.compose(content, Loader=yaml.SafeLoader)
        document = yaml.safe_load(content)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise BidsFileError(f"{file}:{line}: not YAML: {error.problem or error.context}") from None
    except BidsFileError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise BidsFileError(f"{file}: not YAML: {' '.join(str(error).split())}") from None
    if root is None:
        return
    nodes = root.value if isinstance(root, yaml.SequenceNode) else [root]
    values = document if isinstance(document, list) else [document]
    for node, value in zip(nodes, values, strict=True):
        yield _Entry(value, node.start_mark.line + 1, dict(_lines(file, node, ())))


def _refuse_bombs(file: str, content: str) -> None:
    """Aliases may blow a small file up to any size, and deep nesting exhausts the stack."""
    depth = 0
    for event in yaml.parse(content, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise BidsFileError(f"{file}:{event.start_mark.line + 1}: aliases are not allowed")
        if depth > MAX_DEPTH:
            raise BidsFileError(f"{file}:{event.start_mark.line + 1}: nested deeper than {MAX_DEPTH}")


def _lines(
    file: str, node: yaml.Node, place: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], int]]:
    """The line of each field. Of a key given twice YAML would silently keep the last."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                raise BidsFileError(f"{file}:{key.start_mark.line + 1}: {key.value} is given twice")
            seen.add(key.value)
            yield (*place, key.value), key.start_mark.line + 1
            yield from _lines(file, value, (*place, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*place, index), item.start_mark.line + 1
            yield from _lines(file, item, (*place, index))
