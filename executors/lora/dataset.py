"""A task's training data: JSONL files below one root, read in a seeded order that can be resumed."""

import json
import os
import stat
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np

from executors.lora.randomness import derive_seed
from executors.lora.records import TEXT_RECORDS, Record, RecordForm

MAX_RECORD_BYTES = 1 << 20


class DatasetError(ValueError):
    """A dataset that is missing, out of bounds or malformed; the message names the file and the line."""


@dataclass(frozen=True)
class FileIdentity:
    """Tells a file from what it becomes when somebody writes to it, or puts another in its place."""

    device: int
    inode: int
    size: int
    modified_ns: int


@dataclass(frozen=True)
class DatasetIndex:
    """What reading a whole file has shown: it is sound, and where its records begin."""

    offsets: "array[int]"
    digest: str


FindIndex = Callable[[FileIdentity], DatasetIndex | None]


class JsonlDataset:
    """Records of one JSONL file, one on each line.

    Opening reads the whole file once, so a bad line stops a task before it has trained, not in the middle.
    Only the lines' offsets stay in memory. The file is held open: replacing it on disk changes nothing here.

    Attributes:
        name: how errors call the file.
        digest: BLAKE2b of the content, in hex; tells a resumed task whether its data is still the same.
        identity: of the file when it was opened.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        max_record_bytes: int = MAX_RECORD_BYTES,
        find_index: FindIndex = lambda _: None,
        form: RecordForm = TEXT_RECORDS,
    ) -> None:
        """Open and check a file.

        Args:
            form: which records it may have.
            find_index: what is known of a file that was checked before, so that it need not be read again.

        Raises:
            DatasetError: it is no regular file, is empty, or a line is too long or malformed.
        """
        self.name = name
        self._max_record_bytes = max_record_bytes
        self._form = form
        self._file = _open_regular_file(path, name)
        try:
            self.identity = _identity(self._file)
            known = find_index(self.identity)
            self._offsets, self.digest = self._scan() if known is None else (known.offsets, known.digest)
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> Record:
        self._file.seek(self._offsets[index])
        return self._parse(self._file.readline(self._max_record_bytes), self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def index(self) -> DatasetIndex:
        """What was found when it was checked."""
        return DatasetIndex(self._offsets, self.digest)

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def _scan(self) -> tuple["array[int]", str]:
        offsets = array("Q")
        digest = blake2b(digest_size=32)
        for line_number, offset, line in self._lines():
            digest.update(line)
            if not line.strip():
                continue
            self._parse(line, f"{self.name}, line {line_number}")
            offsets.append(offset)
        if not offsets:
            raise DatasetError(f"{self.name}: has no record")
        return offsets, digest.hexdigest()

    def _parse(self, line: bytes, where: str) -> Record:
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"{where}: not JSON: {error}") from error
        try:
            return self._form.parse(fields)
        except ValueError as error:
            raise DatasetError(f"{where}: {error}") from error

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        line_number = offset = 0
        while line := self._file.readline(self._max_record_bytes + 1):
            line_number += 1
            if len(line) > self._max_record_bytes:
                raise DatasetError(
                    f"{self.name}, line {line_number}: longer than {self._max_record_bytes} bytes"
                )
            yield line_number, offset, line
            offset += len(line)


class DatasetRoot:
    """The one folder that datasets come from. Nothing outside it can be named, not by a link either."""

    def __init__(self, folder: Path, max_record_bytes: int = MAX_RECORD_BYTES) -> None:
        self._folder = folder.resolve(strict=True)
        self._max_record_bytes = max_record_bytes

    def open(
        self, name: str, find_index: FindIndex = lambda _: None, form: RecordForm = TEXT_RECORDS
    ) -> JsonlDataset:
        """Open the dataset at the relative path ``name``, whose records are of a form.

        Raises:
            DatasetError: the path is absolute, climbs, leads out through a link, or the file is unfit.
        """
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or "\0" in name:
            raise DatasetError(f"{name!r}: a dataset is a relative path below the dataset root")
        try:
            path = (self._folder / pure).resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise DatasetError(f"{name!r}: no such dataset") from error
        if not path.is_relative_to(self._folder):
            raise DatasetError(f"{name!r}: leads out of the dataset root")
        return JsonlDataset(path, name, self._max_record_bytes, find_index, form)


@dataclass(frozen=True)
class Cursor:
    """A place in the endless shuffled stream of a dataset: ``position`` records of ``epoch`` are used up."""

    epoch: int = 0
    position: int = 0


def take(record_count: int, seed: int, cursor: Cursor, count: int) -> tuple[list[int], Cursor]:
    """Return the next ``count`` record indices from ``cursor`` on, and the cursor behind them.

    Each epoch visits every record once, in an order drawn from (seed, epoch) alone.
    """
    indices: list[int] = []
    while len(indices) < count:
        order = _epoch_order(record_count, seed, cursor.epoch)
        taken = order[cursor.position : cursor.position + count - len(indices)]
        indices += taken.tolist()
        cursor = Cursor(cursor.epoch, cursor.position + len(taken))
        if cursor.position == record_count:
            cursor = Cursor(cursor.epoch + 1, 0)
    return indices, cursor


@lru_cache(maxsize=64)
def _epoch_order(record_count: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng(derive_seed(seed, "order", epoch)).permutation(record_count)


def _open_regular_file(path: Path, name: str) -> BinaryIO:
    # Non-blocking, because opening a named pipe would otherwise wait for a writer; no link, because the
    # path was resolved and a link in its place has been put there since.
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
