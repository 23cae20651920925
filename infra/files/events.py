"""Files of events: jobs, requests for quotes, and vendors' standing quotes."""

import uuid
from typing import Any

from infra.files.entries import Entry, read_entries
from infra.workloads.timed import TimedEvent
from schemas.auction.quotes import VendorLeft, VendorQuoted
from schemas.base import MAX_TIME_S
from schemas.jobs import JobQuoteRequested, JobSubmitted

_ANYBODY = "anybody"
"""Who asks for a quote where a file does not say."""


def read_jobs(file: str, now_s: float, default_cell: str | None = None) -> list[JobSubmitted]:
    """Read the jobs of a file, or of standard input for `-`.

    Beside the fields of `JobSubmitted`, terms may say `bid` (units of money, to six decimals) in place of
    `bid_micros`, and `deadline_in_s` (from `now_s` on) in place of `deadline_s`; a job without id is given
    one, and one without cell is for `default_cell`.

    Raises:
        EntriesFileError: the file cannot be read, is too large, or an entry is no job.
    """
    return [
        entry.parse(JobSubmitted, _fields(entry, now_s, default_cell)) for entry in read_entries(file, "job")
    ]


def read_timed_jobs(
    file: str, start_s: float, default_cell: str | None = None
) -> list[TimedEvent[JobSubmitted]]:
    """Read the same files as jobs of a simulation: `at_s` of each says when it comes, in seconds from
    `start_s`, and 0 where it is left out.

    Raises:
        EntriesFileError: as `read_jobs`, or a time is none.
    """
    timed = []
    for entry in read_entries(file, "job"):
        at_s = entry.fields.get("at_s", 0)
        if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not 0 <= at_s <= MAX_TIME_S:
            raise entry.fault(("at_s",), f"not a number of seconds from 0 to {MAX_TIME_S:.0f}")
        fields = _fields(entry, start_s + at_s, default_cell)
        fields.pop("at_s", None)
        timed.append(TimedEvent(start_s + at_s, entry.parse(JobSubmitted, fields)))
    return timed


def read_quote_requests(file: str, now_s: float, default_cell: str | None = None) -> list[JobQuoteRequested]:
    """Read the same files as requests for a quote: the bid and the id of each are left out.

    Raises:
        EntriesFileError: as `read_jobs`.
    """
    requests = []
    for entry in read_entries(file, "job"):
        fields = _fields(entry, now_s, default_cell)
        del fields["job_id"]
        terms = fields.get("terms")
        if isinstance(terms, dict) and terms.get("kind") == "bid":
            fields["terms"] = {name: value for name, value in terms.items() if name != "bid_micros"}
            fields["terms"]["kind"] = "deadline"
        fields.setdefault("user", _ANYBODY)
        fields.setdefault("quote_id", f"quote-{uuid.uuid4().hex[:12]}")
        requests.append(entry.parse(JobQuoteRequested, fields))
    return requests


def _fields(entry: Entry, now_s: float, default_cell: str | None) -> dict[str, Any]:
    """The fields of a job with the conveniences worked out."""
    fields = dict(entry.fields)
    fields.setdefault("job_id", f"job-{uuid.uuid4().hex[:12]}")
    if default_cell is not None:
        fields.setdefault("cell", default_cell)
    if isinstance(fields.get("terms"), dict):
        fields["terms"] = _terms(entry, fields["terms"], now_s)
    return fields


def _terms(entry: Entry, written: dict[str, Any], now_s: float) -> dict[str, Any]:
    terms = entry.with_micros(written, "bid", inside=("terms",))
    if "deadline_in_s" in terms:
        place = ("terms", "deadline_in_s")
        if "deadline_s" in terms:
            raise entry.fault(place, "give either deadline_in_s or deadline_s")
        seconds = terms.pop("deadline_in_s")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_TIME_S:
            raise entry.fault(place, f"not a positive number of seconds up to {MAX_TIME_S:.0f}")
        terms["deadline_s"] = now_s + seconds
    return terms


def read_vendor_quotes(file: str, default_cell: str | None = None) -> list[VendorQuoted | VendorLeft]:
    """Read the quotes of a file, or of standard input for `-`.

    Beside the fields of `VendorQuoted`, an entry may give its prices in units of money, without `_micros`;
    one that says `leaves: true` takes the vendor's quote back. One without cell is for `default_cell`.

    Raises:
        EntriesFileError: the file cannot be read, is too large, or an entry is no quote.
    """
    return [_quote(entry, default_cell) for entry in read_entries(file, "quote")]


def _quote(entry: Entry, default_cell: str | None) -> VendorQuoted | VendorLeft:
    fields = entry.with_micros(entry.fields, "fixed_price", "price_per_thousand_samples")
    if default_cell is not None:
        fields.setdefault("cell", default_cell)
    if "leaves" not in fields:
        return entry.parse(VendorQuoted, fields)
    if fields.pop("leaves") is not True:
        raise entry.fault(("leaves",), "say true, or leave it out")
    return entry.parse(VendorLeft, fields)
