"""Queries of the load of inference servers to Prometheus, through its HTTP API (instant queries).

https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries
"""

import http.client
import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from schemas.base import MAX_TIME_S
from schemas.codec import describe
from schemas.errors import ReadableError
from schemas.inference import MAX_SERVING

MAX_ANSWER_BYTES = 16 * 2**20
MAX_METRICS_QUERIED = 8
"""Most metrics of a query that are looked up where the query has no series."""
_EXCERPT = 200
_TIMEOUT_S = 10.0
"""Timeout of a request (s)."""
_PORT = re.compile(r":\d{1,5}$")
_NOT_METRICS = re.compile(
    r"""
    "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | `[^`]*`  # texts
    | \{[^}]*\} | \[[^]]*\]                           # label matchers, ranges
    | \b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)
    | \b(?:and|or|unless|bool|offset|atan2|inf|nan)\b
    | [a-zA-Z_]\w*\s*(?=\(|\bby\b|\bwithout\b)         # functions and aggregations
    | (?<![\w:])[0-9][\w.]*                           # numbers and durations
    """,
    re.VERBOSE | re.IGNORECASE,
)
_METRIC = re.compile(r"[a-zA-Z_:][\w:]*")


class LoadQueryError(ReadableError):
    """A query without a valid load as its answer. The message is one line."""


@dataclass(frozen=True)
class MeasuredLoad:
    """A load and its time of measurement."""

    time_s: float
    load: float
    serving: tuple[str, ...] = ()
    """Busy servers, where the query has a series per server."""
    silent: tuple[str, ...] = ()
    """Servers among them that count as busy because the query has no series of them."""
    silent_but_scraped: tuple[str, ...] = ()
    """Silent servers that have a target that Prometheus scrapes."""


Sample = tuple[float, str]
"""Unix time, and the value as text."""


class _Series(BaseModel):
    metric: dict[str, str]
    value: Sample


class _Scalar(BaseModel):
    kind: Annotated[Literal["scalar"], Field(alias="resultType")]
    result: Sample


class _Vector(BaseModel):
    kind: Annotated[Literal["vector"], Field(alias="resultType")]
    result: list[_Series]


class _Answer(BaseModel):
    status: Literal["success"]
    data: Annotated[_Scalar | _Vector, Field(discriminator="kind")]
    warnings: list[str] = []
    """Reasons why an answer may be incomplete: a remote store did not answer, samples were left out."""


class _ErrorReply(BaseModel):
    status: Literal["error"]
    error: str


_REPLY: TypeAdapter[_Answer | _ErrorReply] = TypeAdapter(
    Annotated[_Answer | _ErrorReply, Field(discriminator="status")]
)


class Prometheus:
    """Client of a Prometheus server, or of another with its API."""

    def __init__(self, url: str) -> None:
        """Check the URL; no request is sent yet.

        Args:
            url: URL of the server, such as `http://prometheus:9090`, with a path where it is behind a proxy.

        Raises:
            LoadQueryError: the URL is invalid.
        """
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise LoadQueryError(f"{url!r} is no URL of a server: expected such as http://prometheus:9090")
        self._url = f"{url.rstrip('/')}/api/v1/query"

    def load(self, query: str) -> MeasuredLoad:
        """Return the one value of a query, from 0 to 1.

        Raises:
            LoadQueryError: the server does not answer, or its answer is not one such value.
        """
        answer = self._ask(query)
        if isinstance(answer, _Scalar):
            sample = answer.result
        else:
            if not answer.result:
                raise LoadQueryError(f"{query}: no series: {self._why_no_series(query)}")
            if len(answer.result) != 1:
                raise LoadQueryError(
                    f"{query}: {len(answer.result)} series and not one: aggregate them, as with avg(...), or "
                    "name the label of servers with --per-server"
                )
            sample = answer.result[0].value
        return MeasuredLoad(_time_s(query, sample), _fraction(query, sample))

    def load_by_server(
        self, query: str, label: str, owned: Sequence[str], expected: Collection[str]
    ) -> MeasuredLoad:
        """Return the load from one or more series per server; a server with a value above 0 is busy.

        Busy servers that are not the zone's are not counted.

        An expected server without series counts as busy: its exporter or its scrape fails, or it is down. In
        no case is its capacity to spare. So a partial failure never causes busy servers to be lent, and the
        more servers fail, the more are reclaimed. To report no load would be worse in a large fleet, where
        some server always fails: nothing would be lent, and after a while all loans would be reclaimed.

        Args:
            query: Query with a series or more per server.
            label: Label of the series that names the server; a port after the name is left out.
            owned: Servers that the load is a fraction of, in the order of the configuration.
            expected: Servers that must have a series; any other without one, such as one on loan, is idle.

        Raises:
            LoadQueryError: the server does not answer, or a series has no valid value.
        """
        answer = self._ask(query)
        if isinstance(answer, _Scalar):
            raise LoadQueryError(f"{query}: a scalar, which has no label {label}: leave out --per-server")
        if not answer.result:
            raise LoadQueryError(f"{query}: no series: {self._why_no_series(query)}")
        busy, known, times_s = set(), set(), []
        for series in answer.result:
            if label not in series.metric:
                raise LoadQueryError(f"{query}: a series has no label {label}, it has {_labels(series)}")
            server = _PORT.sub("", series.metric[label])
            known.add(server)
            times_s.append(_time_s(query, series.value))
            if _number(query, series.value) > 0:
                busy.add(server)
        if not known & set(owned):
            raise LoadQueryError(
                f"{query}: {len(answer.result)} series, none of a server of the zone, such as {owned[0]}: "
                f"does label {label} name servers as the zone's configuration does?"
            )
        silent = tuple(server for server in owned if server in expected and server not in known)
        busy.update(silent)
        serving = tuple(server for server in owned if server in busy)
        if len(serving) > MAX_SERVING:
            raise LoadQueryError(
                f"{query}: {len(serving)} busy servers, a report names at most {MAX_SERVING}"
            )
        scraped = self._scraped(label) if silent else frozenset()
        return MeasuredLoad(
            min(times_s),
            len(serving) / len(owned),
            serving,
            silent,
            tuple(server for server in silent if server in scraped),
        )

    def _scraped(self, label: str) -> frozenset[str]:
        """Return the servers with at least one target that is up; none where Prometheus does not answer."""
        try:
            answer = self._ask("up == 1")
        except LoadQueryError:
            return frozenset()
        series = answer.result if isinstance(answer, _Vector) else []
        return frozenset(_PORT.sub("", each.metric[label]) for each in series if label in each.metric)

    def _why_no_series(self, query: str) -> str:
        """Distinguish a metric that Prometheus lacks, such as a renamed one, from unmatched labels."""
        names = metrics_of(query)[:MAX_METRICS_QUERIED]
        absent = []
        for name in names:
            try:
                answer = self._ask(f'count({{__name__="{name}"}})')
            except LoadQueryError as error:
                return f"whether Prometheus has {name} is unknown ({error})"
            if isinstance(answer, _Vector) and not answer.result:
                absent.append(name)
        if absent:
            return (
                f"Prometheus has no metric {', '.join(absent)} at present: it was renamed, or nothing that "
                "exports it is scraped"
            )
        if names:
            return (
                f"Prometheus has {', '.join(names)}, but no series passes the query's labels and conditions"
            )
        return "the query names no metric"

    def _ask(self, query: str) -> _Scalar | _Vector:
        body = self._fetch(query)
        try:
            reply = _REPLY.validate_json(body)
        except ValidationError as error:
            raise LoadQueryError(f"{self._url}: no answer of Prometheus: {_first_line(error)}") from None
        if isinstance(reply, _ErrorReply):
            raise LoadQueryError(f"{self._url}: {query}: {reply.error[:_EXCERPT]}")
        if reply.warnings:
            raise LoadQueryError(
                f"{query}: the answer may be incomplete, Prometheus warns: {reply.warnings[0][:_EXCERPT]}"
            )
        return reply.data

    def _fetch(self, query: str) -> bytes:
        form = urllib.parse.urlencode({"query": query}).encode()
        request = urllib.request.Request(self._url, data=form, headers={"Accept": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                body: bytes = response.read(MAX_ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            raise LoadQueryError(f"{self._url}: HTTP {error.code} {error.reason}{_why(error)}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise LoadQueryError(f"{self._url} does not answer: {reason}") from None
        if len(body) > MAX_ANSWER_BYTES:
            raise LoadQueryError(f"{self._url}: {query}: an answer of more than {MAX_ANSWER_BYTES} bytes")
        return body


def metrics_of(query: str) -> list[str]:
    """Find the names of the metrics that a PromQL query selects, in their order and each once.

    A metric that is named inside braces (`{__name__="x"}`) is not found.
    """
    return list(dict.fromkeys(_METRIC.findall(_NOT_METRICS.sub(" ", query))))


def _why(error: urllib.error.HTTPError) -> str:
    """Return the message with which Prometheus refuses a query, if it has one."""
    try:
        found = json.loads(error.read(MAX_ANSWER_BYTES))
    except (OSError, ValueError, http.client.HTTPException):
        return ""
    message = found.get("error") if isinstance(found, dict) else None
    return f": {message[:_EXCERPT]}" if isinstance(message, str) else ""


def _number(query: str, sample: Sample) -> float:
    try:
        value = float(sample[1])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise LoadQueryError(f"{query}: the value is {sample[1][:_EXCERPT]!r}, no number")
    return value


def _fraction(query: str, sample: Sample) -> float:
    value = _number(query, sample)
    if not 0 <= value <= 1:
        raise LoadQueryError(f"{query}: the value is {value:g}, a load is from 0 to 1")
    return value


def _time_s(query: str, sample: Sample) -> float:
    if not 0 <= sample[0] <= MAX_TIME_S:
        raise LoadQueryError(f"{query}: the time is {sample[0]:g}, no Unix time in seconds")
    return sample[0]


def _labels(series: _Series) -> str:
    return ", ".join(sorted(series.metric)[:8]) or "none"


def _first_line(error: ValidationError) -> str:
    return describe(error).splitlines()[0][:_EXCERPT]
