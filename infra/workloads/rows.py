"""Rows of CSV files from elsewhere, gzipped or plain, and errors that name file, row and column."""

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
