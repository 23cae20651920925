"""Reading the traces of real clusters: `job_id,user,submit_time_s,duration_s,gpus,gpu_type,status,model`."""

import csv
import gzip
import math
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import BinaryIO

from schemas.errors import ReadableError

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
"""What the column may name; it may be blank, as in traces that do not tell. Nothing is made of it, but a file
that has something else there is not what it is taken for."""
MAX_TRACE_BYTES = 512 * 1024 * 1024
"""Of the text, unpacked: a small archive may hold any amount of it."""
MAX_TRACE_JOBS = 5_000_000
MAX_LINE_LENGTH = 4_096
MAX_GPUS = 100_000
MAX_SECONDS = 1e10
UNKNOWN_USER = "unknown"
"""Whose a job is where the trace does not say."""

_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = "\ufeff"
_NUMBER = re.compile(r"[A-Za-z0-9.+-]+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class TraceError(ReadableError):
    """A file that is no trace. The message is one line that names file, row and column."""


@dataclass(frozen=True)
class TraceJob:
    """One job of a real cluster, so far as the market needs it."""

    job_id: str
    user: str
    submit_time_s: float
    """Since the start of the trace's window."""
    duration_s: float
    gpus: int

    @property
    def gpu_s(self) -> float:
        """GPU time: what stands for the work of the job."""
        return self.duration_s * self.gpus


def read_trace(path: Path) -> list[TraceJob]:
    """Read a CSV file, gzipped or plain, of jobs in the order of their submission.

    Raises:
        TraceError: the file cannot be read, a row of it is no job, or is earlier than the one before.
    """
    with _lines(path) as lines:
        rows = _rows(path, lines)
        _, header = next(rows, (1, []))
        if tuple(header) != COLUMNS:
            raise _header_fault(path, header)
        jobs: list[TraceJob] = []
        row_of: dict[str, int] = {}
        for number, row in rows:
            job = _job(path, number, row)
            if (first := row_of.setdefault(job.job_id, number)) != number:
                raise TraceError(
                    f"{path}: row {number}: column job_id: {job.job_id} is in row {first} already"
                )
            if jobs and job.submit_time_s < jobs[-1].submit_time_s:
                raise TraceError(
                    f"{path}: row {number}: column submit_time_s: {job.submit_time_s} is before the "
                    f"{jobs[-1].submit_time_s} of the job above: sort the rows by this column"
                )
            jobs.append(job)
    if not jobs:
        raise TraceError(f"{path}: has no job")
    return jobs


def _header_fault(path: Path, header: list[str]) -> TraceError:
    missing = [column for column in COLUMNS if column not in header]
    lacks = f"column {missing[0]} is missing, " if header and missing else ""
    return TraceError(f"{path}: row 1: {lacks}expected the header {','.join(COLUMNS)}")


def _rows(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """Rows by the number of the line that they begin in: one with quotes may go on for several."""
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
    """The lines of a file; whatever is wrong with the bytes becomes a `TraceError`."""
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
            # It is unpacked in blocks, and of a broken one nothing is had: the fault is in this row or later.
            raise TraceError(f"{path}: after row {number - 1}: the gzip archive is broken: {error}") from None
        if not line:
            return
        read_bytes += len(line)
        if len(line) > MAX_LINE_LENGTH:
            raise TraceError(f"{path}: row {number}: longer than {MAX_LINE_LENGTH} bytes")
        if read_bytes > MAX_TRACE_BYTES or number > MAX_TRACE_JOBS:
            most = f"{MAX_TRACE_BYTES} bytes or {MAX_TRACE_JOBS} rows"
            raise TraceError(f"{path}: row {number}: more than {most}")
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise TraceError(
                f"{path}: row {number}: byte {error.start + 1} of it is not UTF-8: {error.reason}"
            ) from None
        # Spreadsheets begin a file with it.
        yield text.removeprefix(_BYTE_ORDER_MARK) if number == 1 else text


def _job(path: Path, row_number: int, row: list[str]) -> TraceJob:
    if len(row) != len(COLUMNS):
        raise TraceError(f"{path}: row {row_number}: {len(row)} columns, expected {len(COLUMNS)}")
    fields = dict(zip(COLUMNS, row, strict=True))

    def fault(column: str, wanted: str) -> TraceError:
        return TraceError(
            f"{path}: row {row_number}: column {column}: {fields[column][:40]!r} is not {wanted}"
        )

    def number(column: str, most: float) -> float:
        try:
            value = float(fields[column])
        except ValueError:
            raise fault(column, "a number") from None
        # Python's own numbers may have underscores, spaces around them, and digits of any script.
        if not _NUMBER.fullmatch(fields[column]):
            raise fault(column, "a number")
        if not (math.isfinite(value) and 0 <= value <= most):
            raise fault(column, f"between 0 and {most:g}")
        return value

    fields["user"] = fields["user"] or UNKNOWN_USER
    for column in ("job_id", "user"):
        if not _NAME.fullmatch(fields[column]):
            raise fault(column, "a name of up to 128 letters, digits, '.', '_' or '-'")
    if fields["gpu_type"] and fields["gpu_type"] not in GPU_TYPES:
        raise fault("gpu_type", f"blank or one of {', '.join(GPU_TYPES)}")
    gpus = number("gpus", MAX_GPUS)
    if gpus != int(gpus) or gpus < 1:
        raise fault("gpus", "a whole number of at least 1")
    return TraceJob(
        job_id=fields["job_id"],
        user=fields["user"],
        submit_time_s=number("submit_time_s", MAX_SECONDS),
        duration_s=number("duration_s", MAX_SECONDS),
        gpus=int(gpus),
    )
