"""Reading the traces of real clusters: `job_id,user,submit_time_s,duration_s,gpus,gpu_type,status,model`.

Rows are of any CSV files from elsewhere, gzipped or plain; errors name file, row and column.
"""

import csv
import gzip
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import BinaryIO

from schemas.errors import ReadableError

MAX_TRACE_BYTES = 512 * 1024 * 1024
"""Most bytes of the text, unpacked: a small archive may hold any amount of it."""
MAX_TRACE_ROWS = 5_000_000
MAX_LINE_LENGTH = 4_096

_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = "\ufeff"
_NUMBER = re.compile(r"[A-Za-z0-9.+-]+")


class TraceError(ReadableError):
    """An invalid trace. The message is one line that names file, row and column."""


@dataclass(frozen=True)
class TraceRow:
    """One row of a file, with its place for errors."""

    path: Path
    number: int
    """Number of the row's first line."""
    fields: dict[str, str]
    """Values by column."""

    def fault(self, column: str, expected: str) -> TraceError:
        """Return the error of a column that is not as expected."""
        return TraceError(
            f"{self.path}: row {self.number}: column {column}: {self.fields[column][:40]!r} is not {expected}"
        )

    def real(self, column: str, most: float) -> float:
        """Return a number from 0 to `most`.

        Raises:
            TraceError: the value is invalid.
        """
        try:
            value = float(self.fields[column])
        except ValueError:
            raise self.fault(column, "a number") from None
        # Python's own numbers may have underscores, spaces around them, and digits of any script.
        if not _NUMBER.fullmatch(self.fields[column]):
            raise self.fault(column, "a number")
        if not (math.isfinite(value) and 0 <= value <= most):
            raise self.fault(column, f"between 0 and {most:g}")
        return value

    def positive(self, column: str, most: float) -> float:
        """Return a number above 0 and at most `most`.

        Raises:
            TraceError: the value is invalid.
        """
        value = self.real(column, most)
        if value == 0:
            raise self.fault(column, "above 0")
        return value

    def whole(self, column: str, most: float) -> int:
        """Return a whole number from 1 to `most`.

        Raises:
            TraceError: the value is invalid.
        """
        value = self.real(column, most)
        if value != int(value) or value < 1:
            raise self.fault(column, "a whole number of at least 1")
        return int(value)


@contextmanager
def opened_rows(path: Path, *headers: Sequence[str]) -> Iterator[tuple[Sequence[str], Iterator[TraceRow]]]:
    """Open a file and return its header, which is one of `headers`, and its other rows.

    Raises:
        TraceError: the file cannot be read, is no CSV, or has another header.
    """
    with _lines(path) as lines:
        rows = _rows(path, lines)
        _, found = next(rows, (1, []))
        header = next((header for header in headers if tuple(header) == tuple(found)), None)
        if header is None:
            raise _header_fault(path, found, headers)
        yield header, _fielded(path, header, rows)


def _fielded(path: Path, header: Sequence[str], rows: Iterator[tuple[int, list[str]]]) -> Iterator[TraceRow]:
    for number, row in rows:
        if len(row) != len(header):
            raise TraceError(f"{path}: row {number}: {len(row)} columns, expected {len(header)}")
        yield TraceRow(path, number, dict(zip(header, row, strict=True)))


def _header_fault(path: Path, found: list[str], headers: Sequence[Sequence[str]]) -> TraceError:
    lacks = ""
    if found and len(headers) == 1:
        missing = [column for column in headers[0] if column not in found]
        lacks = f"column {missing[0]} is missing, " if missing else ""
    expected = " or ".join(",".join(header) for header in headers)
    return TraceError(f"{path}: row 1: {lacks}expected the header {expected}")


def _rows(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield rows with the numbers of their first lines: a row with quotes may have several lines."""
    reader = csv.reader(lines, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise TraceError(f"{path}: row {number}: {error}") from None
        yield number, row


@contextmanager
def _lines(path: Path) -> Iterator[Iterator[str]]:
    """Open the lines of a file; any error of its bytes is raised as a `TraceError`."""
    try:
        with path.open("rb") as raw:
            zipped = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            raw.seek(0)
            yield _bounded(path, gzip.GzipFile(fileobj=raw) if zipped else raw)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None


def _bounded(path: Path, file: BinaryIO | gzip.GzipFile) -> Iterator[str]:
    read_bytes = 0
    for number in count(1):
        try:
            line = file.readline(MAX_LINE_LENGTH + 1)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            # A broken block gives no lines at all: the fault is in this row or later.
            raise TraceError(f"{path}: after row {number - 1}: the gzip archive is broken: {error}") from None
        if not line:
            return
        read_bytes += len(line)
        if len(line) > MAX_LINE_LENGTH:
            raise TraceError(f"{path}: row {number}: longer than {MAX_LINE_LENGTH} bytes")
        if read_bytes > MAX_TRACE_BYTES or number > MAX_TRACE_ROWS:
            most = f"{MAX_TRACE_BYTES} bytes or {MAX_TRACE_ROWS} rows"
            raise TraceError(f"{path}: row {number}: more than {most}")
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise TraceError(
                f"{path}: row {number}: byte {error.start + 1} of it is not UTF-8: {error.reason}"
            ) from None
        # Spreadsheets begin a file with this mark.
        yield text.removeprefix(_BYTE_ORDER_MARK) if number == 1 else text


COLUMNS = ("job_id", "user", "submit_time_s", "duration_s", "gpus", "gpu_type", "status", "model")
GPU_TYPES = (
    "A10",
    "A30",
    "A40",
    "A100",
    "A800",
    "B200",
    "GB200",
    "H20",
    "H100",
    "H200",
    "H800",
    "K80",
    "L4",
    "L40S",
    "M60",
    "P40",
    "P100",
    "T4",
    "V100",
)
"""Values of the column; it may be blank, as in traces without it. They are not used, but a file with others
is not the expected trace."""
MAX_GPUS = 100_000
MAX_SECONDS = 1e10
UNKNOWN_USER = "unknown"
"""User of a job whose trace has none."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class TraceJob:
    """Properties of one job of a real cluster that workloads use."""

    job_id: str
    user: str
    submit_time_s: float
    """Time since the start of the trace's window."""
    duration_s: float
    gpus: float
    """Number of GPUs; below 1, a share of one."""

    @property
    def gpu_s(self) -> float:
        """GPU time, which stands for the work of the job."""
        return self.duration_s * self.gpus


def read_trace(path: Path) -> list[TraceJob]:
    """Read a CSV file, gzipped or plain, of jobs in the order of their submission.

    Raises:
        TraceError: the file cannot be read, a row is invalid, or earlier than the one before.
    """
    with opened_rows(path, COLUMNS) as (_, rows):
        jobs: list[TraceJob] = []
        row_of: dict[str, int] = {}
        for row in rows:
            job = _job(row)
            if (first := row_of.setdefault(job.job_id, row.number)) != row.number:
                raise TraceError(
                    f"{path}: row {row.number}: column job_id: {job.job_id} is in row {first} already"
                )
            if jobs and job.submit_time_s < jobs[-1].submit_time_s:
                raise TraceError(
                    f"{path}: row {row.number}: column submit_time_s: {job.submit_time_s} is before the "
                    f"{jobs[-1].submit_time_s} of the job above: sort the rows by this column"
                )
            jobs.append(job)
    if not jobs:
        raise TraceError(f"{path}: has no job")
    return jobs


def _job(row: TraceRow) -> TraceJob:
    fields = row.fields
    user = fields["user"] or UNKNOWN_USER
    for column, name in (("job_id", fields["job_id"]), ("user", user)):
        if not _NAME.fullmatch(name):
            raise row.fault(column, "a name of up to 128 letters, digits, '.', '_' or '-'")
    if fields["gpu_type"] and fields["gpu_type"] not in GPU_TYPES:
        raise row.fault("gpu_type", f"blank or one of {', '.join(GPU_TYPES)}")
    return TraceJob(
        job_id=fields["job_id"],
        user=user,
        submit_time_s=row.real("submit_time_s", MAX_SECONDS),
        duration_s=row.real("duration_s", MAX_SECONDS),
        gpus=row.positive("gpus", MAX_GPUS),
    )
