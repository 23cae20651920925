"""Files of events that users write, in YAML or JSON lines: jobs, requests for quotes, standing quotes,
and inputs of a simulation. Each error names file and line.
"""

import json
import re
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from infra.text import MICROS_PER_UNIT
from infra.workloads.timed import TimedEvent
from schemas.auction.bids import VendorLeft, VendorQuoted
from schemas.base import MAX_MICROS, MAX_TIME_S, Event, kind_of
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from schemas.codec import message
from schemas.errors import ReadableError
from schemas.fleet import FleetEvent
from schemas.installed import KINDS, POLICY_EVENTS, InstalledTable
from schemas.jobs import JobQuoteRequested, JobSubmitted
from schemas.kind import Terms
from schemas.registry import TOPIC_BY_EVENT
from schemas.solves import SolveFinished
from streams.worker.bounded_yaml import (
    MAX_NUMBER_CHARACTERS,
    Lines,
    LocatedLine,
    YamlFaultError,
    YamlPath,
    place_of_non_finite,
    read_text,
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


_DEFAULT_USER = "anybody"
"""User of a request for a quote if a file has none."""
_TERMS: Mapping[str, type[Terms]] = InstalledTable(
    lambda: {kind_of(terms): terms for kind in KINDS.values() for terms in (*kind.terms, *kind.quoted_terms)}
)
_QUOTED_TERMS: Mapping[str, type[Terms]] = InstalledTable(
    lambda: {
        kind_of(terms): kind.quoted_terms[0]
        for kind in KINDS.values()
        for terms in kind.terms
        if kind.quoted_terms and terms not in kind.quoted_terms
    }
)
"""By the kind of a job's terms that no quote is given on: those that its policy quotes on instead."""
_SIMULATED = (CellConfigured, ClockTicked, FleetEvent, SolveFinished)
"""Events that a simulation makes itself, except for those of a policy."""
_TIMED: Mapping[str, type[Event]] = InstalledTable(
    lambda: {
        event.TYPE: event
        for event in TOPIC_BY_EVENT
        if not issubclass(event, _SIMULATED) or event in POLICY_EVENTS
    }
)


class EntriesFileError(ReadableError):
    """An invalid file of entries. The message is one line that names file and line."""


@dataclass(frozen=True)
class Entry:
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

    def with_micros(self, fields: dict[str, Any], *names: str, inside: YamlPath = ()) -> dict[str, Any]:
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

    def fault(self, place: YamlPath, message: str) -> EntriesFileError:
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

    def _micros(self, place: YamlPath, amount: Any) -> int:
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
        with nullcontext(sys.stdin.buffer) if file == STANDARD_INPUT else Path(file).open("rb") as source:
            return read_text(source, MAX_FILE_BYTES)
    except OSError as error:
        raise EntriesFileError(f"{file}: {error.strerror}") from None
    except YamlFaultError as error:
        raise EntriesFileError(f"{file}: {error}") from None


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


def read_jobs(file: str, now_s: float, default_cell: str | None = None) -> list[JobSubmitted]:
    """Read the jobs of a file, or of standard input for `-`.

    In addition to the fields of `JobSubmitted`, terms may have each amount in units of money, to six
    decimals, without `_micros` in its name, and `deadline_in_s` (from `now_s` on) in place of `deadline_s`.
    A job without id gets a random one, and a job without cell is for `default_cell`.

    Raises:
        EntriesFileError: the file cannot be read, is too large, or an entry is not a valid job.
    """
    return [_job(entry, entry.fields, now_s, default_cell) for entry in read_entries(file, "job")]


def read_timed_jobs(file: str, start_s: float, cell: str) -> list[TimedEvent[JobSubmitted]]:
    """Read the files of `read_jobs` as jobs of a simulation: `at_s` is the time of submission in seconds from
    `start_s`, 0 by default.

    Raises:
        EntriesFileError: as `read_jobs`, or a time is invalid, or a job is for another cell.
    """
    timed = []
    for entry in read_entries(file, "job"):
        fields, time_s = _timed(entry, start_s, cell)
        timed.append(TimedEvent(time_s, _job(entry, fields, time_s, cell)))
    return timed


def read_timed_events(file: str, start_s: float, cell: str) -> list[TimedEvent[Event]]:
    """Read other events of a simulation: changes of nodes and zones, withdrawals, requests for quotes, and
    the events of policies.

    An entry has the fields of an event, its CloudEvents `type`, and `at_s` as in `read_timed_jobs`. Amounts
    and deadlines may have the forms of `read_jobs`.

    Raises:
        EntriesFileError: the file cannot be read, is too large, or an entry is not a valid event.
    """
    timed = []
    for entry in read_entries(file, "event"):
        fields, time_s = _timed(entry, start_s, cell)
        name = fields.pop("type", None)
        event = _TIMED.get(name) if isinstance(name, str) else None
        if event is None:
            raise entry.fault(("type",), f"no event that a simulation takes, which are {', '.join(_TIMED)}")
        fields = entry.with_micros(_canonical(entry, fields, time_s, cell), *_amounts(event))
        timed.append(TimedEvent(time_s, entry.parse(event, fields)))
    return timed


def read_quote_requests(file: str, now_s: float, default_cell: str | None = None) -> list[JobQuoteRequested]:
    """Read the files of `read_jobs` as requests for a quote. Fields that only a job has, such as its id and
    its bid, are left out.

    Raises:
        EntriesFileError: as `read_jobs`.
    """
    requests = []
    for entry in read_entries(file, "job"):
        fields = _canonical(entry, entry.fields, now_s, default_cell)
        fields.pop("job_id", None)
        kind = _kind(fields)
        if kind in _QUOTED_TERMS:
            quoted = _QUOTED_TERMS[kind]
            left_out = _TERMS[kind].model_fields.keys() - quoted.model_fields.keys()
            terms = {name: value for name, value in fields["terms"].items() if name not in left_out}
            fields["terms"] = {**terms, "kind": kind_of(quoted)}
        fields.setdefault("user", _DEFAULT_USER)
        fields.setdefault("quote_id", f"quote-{uuid.uuid4().hex[:12]}")
        requests.append(entry.parse(JobQuoteRequested, fields))
    return requests


def _timed(entry: Entry, start_s: float, cell: str) -> tuple[dict[str, Any], float]:
    """Return the fields of an entry without `at_s`, and its time."""
    fields = dict(entry.fields)
    at_s = fields.pop("at_s", 0)
    if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not 0 <= at_s <= MAX_TIME_S:
        raise entry.fault(("at_s",), f"not a number of seconds from 0 to {MAX_TIME_S:.0f}")
    if fields.get("cell", cell) != cell:
        raise entry.fault(("cell",), f"not {cell}, which is simulated")
    return fields, start_s + at_s


def _job(entry: Entry, fields: dict[str, Any], now_s: float, default_cell: str | None) -> JobSubmitted:
    fields = _canonical(entry, fields, now_s, default_cell)
    fields.setdefault("job_id", f"job-{uuid.uuid4().hex[:12]}")
    return entry.parse(JobSubmitted, fields)


def _canonical(
    entry: Entry, written: dict[str, Any], now_s: float, default_cell: str | None
) -> dict[str, Any]:
    """Return the fields of an event in the form of its model."""
    fields = dict(written)
    if default_cell is not None:
        fields.setdefault("cell", default_cell)
    if (terms := _TERMS.get(_kind(fields))) is not None:
        fields["terms"] = _terms(entry, terms, fields["terms"], now_s)
    return fields


def _kind(fields: dict[str, Any]) -> str:
    """Return the kind of the terms among these fields; empty without terms or kind."""
    terms = fields.get("terms")
    kind = terms.get("kind") if isinstance(terms, dict) else None
    return kind if isinstance(kind, str) else ""


def _terms(entry: Entry, model: type[Terms], written: dict[str, Any], now_s: float) -> dict[str, Any]:
    terms = entry.with_micros(written, *_amounts(model), inside=("terms",))
    # A policy's terms may have a field of their own with that name.
    if "deadline_s" in model.model_fields and "deadline_in_s" in terms.keys() - model.model_fields.keys():
        place = ("terms", "deadline_in_s")
        if "deadline_s" in terms:
            raise entry.fault(place, "give either deadline_in_s or deadline_s")
        seconds = terms.pop("deadline_in_s")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_TIME_S:
            raise entry.fault(place, f"not a positive number of seconds up to {MAX_TIME_S:.0f}")
        terms["deadline_s"] = now_s + seconds
    return terms


def _amounts(model: type[BaseModel]) -> Iterable[str]:
    """Return the names of amounts in units of money that a file may have for a model."""
    names = {name.removesuffix("_micros") for name in model.model_fields if name.endswith("_micros")}
    return sorted(names - model.model_fields.keys())


def read_vendor_quotes(file: str, default_cell: str | None = None) -> list[VendorQuoted | VendorLeft]:
    """Read the quotes of a file, or of standard input for `-`.

    In addition to the fields of `VendorQuoted`, an entry may have its prices in units of money, without
    `_micros`. An entry with `leaves: true` withdraws the vendor's quote. One without cell is for
    `default_cell`.

    Raises:
        EntriesFileError: the file cannot be read, is too large, or an entry is not a valid quote.
    """
    return [_quote(entry, default_cell) for entry in read_entries(file, "quote")]


def _quote(entry: Entry, default_cell: str | None) -> VendorQuoted | VendorLeft:
    fields = entry.with_micros(entry.fields, *_amounts(VendorQuoted))
    if default_cell is not None:
        fields.setdefault("cell", default_cell)
    if "leaves" not in fields:
        return entry.parse(VendorQuoted, fields)
    if fields.pop("leaves") is not True:
        raise entry.fault(("leaves",), "set it to true, or leave it out")
    return entry.parse(VendorLeft, fields)
