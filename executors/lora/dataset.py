"""A task's training data: JSONL files below one root, read in a seeded order that can be resumed."""

import os
import stat
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Self

import numpy as np

from executors.lora.batch import TokenSequence
from executors.lora.randomness import derive_seed
from executors.lora.record_fields import MAX_RECORD_BYTES, read_json
from executors.lora.records import TEXT_RECORDS, DatasetRecord, RecordForm
from executors.lora.tokens import Tokenizer

MOST_KNOWN_RECORDS = 1 << 23
"""Most records of files whose indices are kept in memory: 64 MiB."""
_OTHER_FORMATS = (
    ((b"\xff\xfe\0\0", b"\0\0\xfe\xff", b"{\0\0\0", b"\0\0\0{"), "is UTF-32: save it as UTF-8"),
    ((b"\xff\xfe", b"\xfe\xff", b"{\0", b"\0{"), "is UTF-16: save it as UTF-8"),
    ((b"\xef\xbb",), "begins with a byte order mark: save it as UTF-8 without one"),
    ((b"\x1f\x8b",), "is compressed: unpack it"),
    ((b"PK",), "is a ZIP archive: unpack it"),
    ((b"PA",), "is a Parquet file: convert it to JSONL"),
)
"""Formats by the first bytes of a file, none of which begin a JSON object in UTF-8. UTF-32 comes first, since
its bytes begin like those of UTF-16."""


class DatasetError(ValueError):
    """A dataset that is missing, out of bounds or malformed; the message names the file and the line."""


@dataclass(frozen=True)
class FileIdentity:
    """Identity of a file, which changes when the file is written or replaced."""

    device: int
    inode: int
    size: int
    modified_ns: int


@dataclass(frozen=True)
class DatasetIndex:
    """Places of the records of a file that was read whole and is valid."""

    offsets: "array[int]"
    digest: str


FindIndex = Callable[[FileIdentity, RecordForm], DatasetIndex | None]
"""Function that returns the index of a file whose records were checked against a form."""


class RecentIndices:
    """Indices of the most recently opened files: a task need not read its data whole for each slot."""

    def __init__(self, most_records: int = MOST_KNOWN_RECORDS) -> None:
        """Keep the indices of at most `most_records` records."""
        self._left = most_records
        self._known: dict[tuple[FileIdentity, str], DatasetIndex] = {}

    def find(self, identity: FileIdentity, form: RecordForm) -> DatasetIndex | None:
        """Return the index of a file whose records were checked against a form; None if it has no index."""
        key = identity, form.key
        index = self._known.pop(key, None)
        if index is not None:
            self._known[key] = index
        return index

    def keep(self, identity: FileIdentity, form: RecordForm, index: DatasetIndex) -> None:
        """Keep an index, instead of the least recently used ones if there is no room."""
        if self.find(identity, form) is not None:
            return
        self._known[identity, form.key] = index
        self._left -= len(index.offsets)
        while self._left < 0:
            self._left += len(self._known.pop(next(iter(self._known))).offsets)


class JsonlDataset:
    """Records of one JSONL file, one on each line.

    Opening reads the whole file once, so a bad line stops a task before it has trained, not in the middle.
    Only the lines' offsets stay in memory. The file is held open: replacing it on disk has no effect here.

    Attributes:
        name: name of the file in errors.
        digest: BLAKE2b of the content, in hex; shows a resumed task whether its data is unchanged.
        identity: identity of the file when it was opened.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        find_index: FindIndex = lambda _, __: None,
        form: RecordForm = TEXT_RECORDS,
    ) -> None:
        """Open and check a file.

        Args:
            form: form of its records.
            find_index: returns the index of a file that was checked before, so that it need not be read
                again.

        Raises:
            DatasetError: it is not a regular file, is empty, or a line is too long or malformed.
        """
        self.name = name
        self._form = form
        self._file = _open_regular_file(path, name)
        try:
            self.identity = _identity(self._file)
            known = find_index(self.identity, form)
            self._offsets, self.digest = self._scan() if known is None else (known.offsets, known.digest)
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> DatasetRecord:
        self._file.seek(self._offsets[index])
        return self._parse(self._file.readline(MAX_RECORD_BYTES), lambda: self._place(index))

    def tokenized(self, index: int, tokenizer: Tokenizer, sequence_length: int) -> TokenSequence:
        """Return a record in at most ``sequence_length`` tokens.

        Raises:
            DatasetError: the file was changed, or the tokenizer raises any error for the record. The message
                names the line.
            OSError: the file cannot be read.
            MemoryError: it does not fit into memory.
        """
        record = self[index]
        try:
            return record.tokenize(tokenizer, sequence_length)
        except ValueError as error:
            raise DatasetError(f"{self._place(index)}: {error}") from error
        except (OSError, MemoryError):
            raise
        except BaseException as error:
            # A panic of the tokenizer's Rust code is not an `Exception`.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            what = f"{type(error).__name__}: {error}"
            raise DatasetError(f"{self._place(index)}: cannot be tokenized: {what}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def index(self) -> DatasetIndex:
        """Index from the check of the file."""
        return DatasetIndex(self._offsets, self.digest)

    def close(self) -> None:
        self._file.close()

    def lines(self) -> Iterator[bytes]:
        """Yield the line of each record, without white space around it."""
        self._file.seek(0)
        return (line.strip() for _, _, line in self._lines() if line.strip())

    def _scan(self) -> tuple["array[int]", str]:
        offsets = array("Q")
        digest = blake2b(digest_size=32)
        for line_number, offset, line in self._lines():
            digest.update(line)
            if not line.strip():
                continue
            if not offsets:
                self._refuse_other_formats(line, line_number)
            self._parse(line, partial("{}, line {}".format, self.name, line_number))
            offsets.append(offset)
        if not offsets:
            raise DatasetError(f"{self.name}: has no record")
        return offsets, digest.hexdigest()

    def _refuse_other_formats(self, first: bytes, line_number: int) -> None:
        """Check that the first line that is not blank may be one of a JSONL file."""
        fault = next((fault for starts, fault in _OTHER_FORMATS if first.startswith(starts)), None)
        if fault is None and first.lstrip()[:1] == b"[":
            fault = "is a JSON array: write one JSON object on each line"
        if first.strip() == b"{":
            what = "not JSON: an object that goes on behind the line: write one JSON object on each line"
            raise DatasetError(f"{self.name}, line {line_number}: {what}")
        if fault is not None:
            raise DatasetError(f"{self.name}: {fault}")

    def _parse(self, line: bytes, place: Callable[[], str]) -> DatasetRecord:
        try:
            return self._form.parse(read_json(line))
        except ValueError as error:
            raise DatasetError(f"{place()}: {error}") from error

    def _place(self, index: int) -> str:
        """Return file and line of a record for errors, by reading the file up to it."""
        self._file.seek(0)
        lines, left = 1, self._offsets[index]
        while left > 0 and (block := self._file.read(min(left, MAX_RECORD_BYTES))):
            lines += block.count(b"\n")
            left -= len(block)
        return f"{self.name}, line {lines}"

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        line_number = offset = 0
        while line := self._file.readline(MAX_RECORD_BYTES + 1):
            line_number += 1
            if len(line) > MAX_RECORD_BYTES:
                raise DatasetError(f"{self.name}, line {line_number}: longer than {MAX_RECORD_BYTES} bytes")
            yield line_number, offset, line
            offset += len(line)


class DatasetRoot:
    """The one folder of datasets. No name or link leads outside of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve(strict=True)

    def open(
        self, name: str, find_index: FindIndex = lambda _, __: None, form: RecordForm = TEXT_RECORDS
    ) -> JsonlDataset:
        """Open the dataset at the relative path ``name``, with records of a form.

        Raises:
            DatasetError: the path is absolute, climbs, leads out through a link, or the file is unfit.
        """
        return JsonlDataset(self._path(name), name, find_index, form)

    def tally(self, name: str) -> tuple[int, str, int]:
        """Return size, digest and number of lines that are JSON objects of any file.

        Raises:
            DatasetError: the path is absolute, climbs, leads out through a link, or cannot be read.
        """
        digest, size_bytes, records, is_start = blake2b(digest_size=32), 0, 0, True
        with _open_regular_file(self._path(name), name) as file:
            while line := file.readline(MAX_RECORD_BYTES + 1):
                digest.update(line)
                size_bytes += len(line)
                # A line that is too long is read in parts, none of which is a record.
                records += is_start and len(line) <= MAX_RECORD_BYTES and _is_object(line)
                is_start = line.endswith(b"\n")
        return size_bytes, digest.hexdigest(), records

    def lines(self, name: str) -> Iterator[bytes]:
        """Yield the lines of any file that are not blank or too long for a record, without white space around
        them.

        Raises:
            DatasetError: the path is absolute, climbs, leads out through a link, or cannot be read.
        """
        with _open_regular_file(self._path(name), name) as file:
            is_start = True
            while line := file.readline(MAX_RECORD_BYTES + 1):
                if is_start and len(line) <= MAX_RECORD_BYTES and line.strip():
                    yield line.strip()
                is_start = line.endswith(b"\n")

    def _path(self, name: str) -> Path:
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or "\0" in name:
            raise DatasetError(f"{name!r}: a dataset is a relative path below the dataset root")
        try:
            path = (self._folder / pure).resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise DatasetError(f"{name!r}: no such dataset") from error
        if not path.is_relative_to(self._folder):
            raise DatasetError(f"{name!r}: leads out of the dataset root")
        return path


@dataclass(frozen=True)
class Cursor:
    """A place in the endless shuffled stream of a dataset: ``position`` records of ``epoch`` are used up."""

    epoch: int = 0
    position: int = 0


def next_indices(record_count: int, seed: int, cursor: Cursor, count: int) -> tuple[list[int], Cursor]:
    """Return the next ``count`` record indices from ``cursor`` on, and the cursor behind them.

    Each epoch visits every record once, in an order drawn from (seed, epoch) only.
    """
    indices: list[int] = []
    while len(indices) < count:
        order = _epoch_order(record_count, seed, cursor.epoch)
        drawn = order[cursor.position : cursor.position + count - len(indices)]
        indices += drawn.tolist()
        cursor = Cursor(cursor.epoch, cursor.position + len(drawn))
        if cursor.position == record_count:
            cursor = Cursor(cursor.epoch + 1, 0)
    return indices, cursor


@lru_cache(maxsize=64)
def _epoch_order(record_count: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng(derive_seed(seed, "order", epoch)).permutation(record_count)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(read_json(line), dict)
    except ValueError:
        return False


def _open_regular_file(path: Path, name: str) -> BinaryIO:
    # Non-blocking, since opening a named pipe would otherwise wait for a writer. Without links: the path was
    # resolved, so a link at its place is new.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        raise DatasetError(f"{name!r}: cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DatasetError(f"{name!r}: is not a regular file")
    return os.fdopen(descriptor, "rb")


def _identity(file: BinaryIO) -> FileIdentity:
    status = os.fstat(file.fileno())
    return FileIdentity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
