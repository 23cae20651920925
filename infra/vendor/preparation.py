"""Pre-processing of a JSONL file: duplicates and unfit records are dropped, the others are kept as they are.

The same file and limits give the same bytes.
"""

import errno
import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Self

from executors.lora.record_fields import MAX_RECORD_BYTES, read_json
from executors.node.files import sync_folder, write_file
from schemas.auction.deliveries import DataFault
from schemas.lora import Columns, Dataset, Delivery

_CHECK_EVERY_LINES = 1_000
"""Lines after which a stop of the service is noticed."""
_KEY_BYTES = 16
"""Size of the digests by which records are compared."""
_READ_BYTES = 1 << 20
_NO_SUCH_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


class UnfitDataError(Exception):
    """Data that no vendor can prepare.

    Attributes:
        reason: the fault.
    """

    def __init__(self, reason: DataFault, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class StoppedError(Exception):
    """The service was stopped before a file was complete; nothing of the file is left."""


@dataclass(frozen=True)
class LengthLimits:
    """Least and most characters of a record, in all of its texts together."""

    least_characters: int = 1
    most_characters: int = MAX_RECORD_BYTES


@dataclass
class Counts:
    """Counts of the lines of a file, without blank ones."""

    read: int = 0
    kept: int = 0
    duplicates: int = 0
    invalid: int = 0
    """Lines that are too long, not UTF-8, or no JSON object."""
    unfit: int = 0
    """Records that lack a named field, or are empty, too short or too long."""

    def __str__(self) -> str:
        return " ".join(f"{name}={count}" for name, count in vars(self).items())


class Preparation:
    """Prepares files below one dataset root."""

    def __init__(
        self,
        root: Path,
        limits: LengthLimits,
        count_tokens: Callable[[str], int] | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Use a dataset root.

        Args:
            root: folder that exists.
            limits: lengths of the records to keep.
            count_tokens: returns the tokens of a text; None to count none.
            is_stopped: returns whether to end before a file is complete.

        Raises:
            OSError: there is no such folder.
        """
        self._root = root.resolve(strict=True)
        self._limits = limits
        self._count_tokens = count_tokens
        self._is_stopped = is_stopped

    def prepare(self, dataset: Dataset, least_samples: int, path: str) -> tuple[Delivery, Counts | None]:
        """Write the fit records of a dataset to `path`, atomically, and return the file with its counts. A
        file that is there already is returned as it is, without counts.

        Raises:
            UnfitDataError: the data are missing or unfit.
            StoppedError: the service was stopped.
            OSError: a file cannot be read or written.
        """
        target = self._root / path
        if not target.is_file():
            source = self._source(dataset.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.parent.resolve().is_relative_to(self._root):
                raise OSError(f"{path!r} leads out of the dataset root")
            counts = self._write(source, target, dataset, least_samples)
            return _delivery_of(target, path), counts
        return _delivery_of(target, path), None

    def _source(self, path: str) -> Path:
        try:
            source = (self._root / path).resolve(strict=True)
        except (OSError, RuntimeError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_SUCH_FILE:
                raise
            raise UnfitDataError("data_missing", f"{path!r}: no such file") from error
        if not source.is_relative_to(self._root) or not source.is_file():
            raise UnfitDataError("data_missing", f"{path!r}: is no file below the dataset root")
        return source

    def _write(self, source: Path, target: Path, dataset: Dataset, least_samples: int) -> Counts:
        counts, tokens = Counts(), list[int]()
        with source.open("rb") as file, _unfinished(target) as (path, output):
            for line, texts in self._fit_records(file, dataset, counts):
                output.write(line)
                if self._count_tokens is not None:
                    tokens.append(sum(map(self._count_tokens, texts)))
            _check(dataset, least_samples, counts)
            output.flush()
            os.fsync(output.fileno())
            if self._count_tokens is not None:
                write_file(target.with_name(f"{target.name}.tokens"), json.dumps(tokens).encode())
            path.rename(target)
            sync_folder(target.parent)
        return counts

    def _fit_records(
        self, file: BinaryIO, dataset: Dataset, counts: Counts
    ) -> Iterator[tuple[bytes, list[str]]]:
        """Yield each line to keep with its texts, and count all lines."""
        seen: set[bytes] = set()
        for line in _lines(file):
            counts.read += 1
            if counts.read % _CHECK_EVERY_LINES == 0 and self._is_stopped():
                raise StoppedError
            if counts.read > dataset.samples:
                continue
            record = None if line is None else _Record.of(line)
            if line is None or record is None:
                counts.invalid += 1
                continue
            texts = _texts(record.fields, dataset.columns)
            if (
                not self._limits.least_characters
                <= sum(len(text.strip()) for text in texts)
                <= self._limits.most_characters
            ):
                counts.unfit += 1
                continue
            if record.key in seen:
                counts.duplicates += 1
                continue
            seen.add(record.key)
            counts.kept += 1
            yield line.rstrip(b"\r\n") + b"\n", texts


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Yield the lines that are not blank; None for one that is too long, without reading it at once."""
    while line := file.readline(MAX_RECORD_BYTES + 1):
        if len(line) > MAX_RECORD_BYTES:
            while line and not line.endswith(b"\n"):
                line = file.readline(_READ_BYTES)
            yield None
        elif line.strip():
            yield line


@dataclass(frozen=True)
class _Record:
    """A JSON object of a line."""

    fields: dict[str, Any]
    key: bytes
    """Digest that equal objects share, whatever the order of their fields."""

    @classmethod
    def of(cls, line: bytes) -> Self | None:
        """Return the object of a line; None if the line is not one, or has characters that no text has."""
        try:
            fields = read_json(line)
            if not isinstance(fields, dict):
                return None
            for text in _strings(fields):
                text.encode()  # fails for half of a surrogate pair
            written = json.dumps(fields, sort_keys=True)
        except (ValueError, RecursionError):
            return None
        return cls(fields, blake2b(written.encode(), digest_size=_KEY_BYTES).digest())


def _texts(record: dict[str, Any], columns: Columns | None) -> list[str]:
    """Return the texts of a record's named fields, or of all fields if none are named; none if a named field
    is missing or empty."""
    if columns is None:
        return list(_strings(record))
    named = columns.model_dump(exclude_none=True)
    texts = {name: list(_strings(record.get(column))) for name, column in named.items()}
    is_whole = all(
        any(text.strip() for text in texts[name]) for name in texts if name not in ("input", "label")
    )
    return [text for each in texts.values() for text in each] if is_whole else []


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value, in their order, but for the names of fields."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str() as text:
                yield text
            case dict() as fields:
                waiting += reversed(fields.values())
            case list() as items:
                waiting += reversed(items)


def _check(dataset: Dataset, least_samples: int, counts: Counts) -> None:
    """Check the counts of a file that was read whole.

    Raises:
        UnfitDataError: they are not those of an order.
    """
    if counts.read > dataset.samples:
        raise UnfitDataError(
            "more_data_than_ordered", f"{counts.read} records, {dataset.samples} are declared"
        )
    if counts.invalid == counts.read:
        raise UnfitDataError("data_unreadable", f"none of {counts.read} lines is a JSON object in UTF-8")
    if counts.kept < max(least_samples, 1):
        raise UnfitDataError("too_little_left", f"{counts}, at least {least_samples} are ordered")


@contextmanager
def _unfinished(target: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Open a new file next to `target`, which is removed at the end unless it was renamed."""
    # Another process may prepare the same order.
    path = target.with_name(f".unfinished-{uuid.uuid4().hex}")
    try:
        with path.open("xb") as output:
            yield path, output
    finally:
        path.unlink(missing_ok=True)


def _delivery_of(target: Path, path: str) -> Delivery:
    digest, samples = blake2b(digest_size=32), 0
    with target.open("rb") as file:
        while part := file.read(_READ_BYTES):
            digest.update(part)
            samples += part.count(b"\n")
        size_bytes = file.tell()
    return Delivery(path=path, digest=digest.hexdigest(), size_bytes=size_bytes, samples=samples)
