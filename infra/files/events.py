"""Files of events: jobs, requests for quotes, vendors' standing quotes, and the inputs of a simulation."""

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from infra.files.entries import Entry, read_entries
from infra.workloads.timed import TimedEvent
from schemas.auction.bids import VendorLeft, VendorQuoted
from schemas.base import MAX_TIME_S, Event, kind_of
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from schemas.fleet import FleetEvent
from schemas.jobs import JobQuoteRequested, JobSubmitted
from schemas.kind import Terms
from schemas.kinds import KINDS, POLICY_EVENTS, InstalledTable
from schemas.registry import TOPIC_BY_EVENT
from schemas.solves import SolveFinished

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
        raise entry.fault(("leaves",), "say true, or leave it out")
    return entry.parse(VendorLeft, fields)
