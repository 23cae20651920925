"""Checkpoints as folders of files: written atomically, verified before use.

Layout: ``<root>/<job_id>/<token>-<samples_done>/``, with a ``manifest.json`` that lists every other file. The
folder's token is a fencing token: a replaced writer has a lower one and is refused. A job that is over has
only ``<root>/<job_id>/final/`` left, and accepts no more writes. An invalid ``final/`` ends nothing: it is
ignored like a damaged checkpoint, and replaced when the job is concluded again.
"""

import json
import logging
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pydantic import TypeAdapter

from executors.node.files import digest_of, sync_folder, write_to_disk
from schemas.base import Identifier, Record

MANIFEST = "manifest.json"
FINAL = "final"

_FOLDER = re.compile(r"(0|[1-9][0-9]*)-(0|[1-9][0-9]*)")
_NAME: TypeAdapter[str] = TypeAdapter(Identifier)
_UNFINISHED_PREFIX = ".unfinished-"
_KEPT = 2
"""Valid checkpoints that are kept of each job."""

_log = logging.getLogger(__name__)

_logged_damaged: set[Path] = set()
"""Folders that were logged as damaged: stores of one process read them repeatedly."""


class StaleWriterError(RuntimeError):
    """A writer with a lower fencing token than an earlier writer's, or of a job that is over."""


class FileEntry(Record):
    """Size in bytes and BLAKE2b digest (hex) of one file."""

    size: int
    blake2b: str

    @classmethod
    def of(cls, content: bytes) -> "FileEntry":
        return cls(size=len(content), blake2b=digest_of(content))


class Manifest(Record):
    """Contents of a checkpoint."""

    job_id: Identifier
    token: int
    samples_done: int
    files: dict[str, FileEntry]


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint. ``files`` are the bytes that were verified."""

    path: Path
    token: int
    samples_done: int
    files: Mapping[str, bytes]


class CheckpointStore:
    """Keeps the last checkpoints of each job below one folder."""

    def __init__(self, root: Path) -> None:
        """Keep the checkpoints of each job below ``root``."""
        self._root = root

    def save(self, job_id: str, token: int, samples_done: int, files: Mapping[str, bytes]) -> Path:
        """Write a checkpoint and remove old ones. A repeated write has no effect.

        The files are written to a hidden folder and synced one by one, the manifest last; only then is the
        folder renamed. A crash leaves the checkpoints before it unchanged.

        Args:
            token: the writer's fencing token, not negative.
            files: content by plain file name.

        Raises:
            StaleWriterError: a writer with a higher token has written, or the job is concluded.
            OSError: the disk failed; nothing was published.
        """
        folder = self._claimed_folder(job_id, token)
        if self.is_concluded(job_id):
            raise StaleWriterError(f"{job_id}: is over")
        target = folder / f"{token}-{samples_done}"
        self._write(target, job_id, token, samples_done, files)
        self._prune(folder, job_id, token)
        return target

    def conclude(self, job_id: str, token: int, samples_done: int, files: Mapping[str, bytes]) -> None:
        """Replace all checkpoints of a job by its final record.

        The record is on disk before the first of them is removed. A repeated conclusion keeps the first
        record, and removes the files that a crash has left.

        Raises:
            StaleWriterError: a writer with a higher token has written.
            OSError: the disk failed; the checkpoints are unchanged.
        """
        folder = self._job_folder(job_id)
        if not self.is_concluded(job_id):
            self._write(self._claimed_folder(job_id, token) / FINAL, job_id, token, samples_done, files)
        for path in folder.iterdir():
            if path.name != FINAL:
                shutil.rmtree(path, ignore_errors=True)

    def remove(self, job_id: str) -> None:
        shutil.rmtree(self._job_folder(job_id), ignore_errors=True)

    def is_concluded(self, job_id: str) -> bool:
        """Return whether the job has a valid record of ``conclude``."""
        return self._verify(self._job_folder(job_id) / FINAL, job_id) is not None

    def conclusion(self, job_id: str) -> Checkpoint | None:
        """Return the record of ``conclude``, or ``None`` if the job continues.

        An invalid record is logged, once.
        """
        path = self._job_folder(job_id) / FINAL
        final = self._verify(path, job_id)
        if final is None and path.exists():
            _warn_once(path, "the record %s of a finished job does not verify and is passed over")
        return final

    def newest(self, job_id: str) -> Checkpoint | None:
        """Return the newest valid checkpoint, or ``None``. Newest is the highest token, then the most
        samples.

        For a concluded job, it is the record of ``conclude``.
        """
        folder = self._job_folder(job_id)
        return self.conclusion(job_id) or next(self._trustworthy(folder, job_id), None)

    def _job_folder(self, job_id: str) -> Path:
        return self._root / _NAME.validate_python(job_id)

    def _claimed_folder(self, job_id: str, token: int) -> Path:
        """Return the folder of a job, for a writer that is not replaced."""
        folder = self._job_folder(job_id)
        folder.mkdir(parents=True, exist_ok=True)
        newest_token = max((published for published, _ in self._published(folder)), default=token)
        if token < newest_token:
            raise StaleWriterError(f"{job_id}: token {token} was replaced by {newest_token}")
        return folder

    def _write(
        self, target: Path, job_id: str, token: int, samples_done: int, files: Mapping[str, bytes]
    ) -> None:
        """Publish a folder, unless it exists and is valid."""
        if self._verify(target, job_id) is not None:
            return
        # An invalid folder of that name is incomplete; it is replaced.
        shutil.rmtree(target, ignore_errors=True)
        manifest = Manifest(
            job_id=job_id,
            token=token,
            samples_done=samples_done,
            files={name: FileEntry.of(content) for name, content in sorted(files.items())},
        )
        _publish(target, files, manifest)
        _logged_damaged.discard(target)

    @staticmethod
    def _published(folder: Path) -> list[tuple[int, int]]:
        """List (token, samples done) of all checkpoints, newest first, valid or not."""
        names = (_FOLDER.fullmatch(path.name) for path in folder.glob("*") if path.is_dir())
        return sorted(((int(name[1]), int(name[2])) for name in names if name), reverse=True)

    def _trustworthy(self, folder: Path, job_id: str) -> Iterator[Checkpoint]:
        for token, samples_done in self._published(folder):
            path = folder / f"{token}-{samples_done}"
            if checkpoint := self._verify(path, job_id):
                yield checkpoint
            else:
                _warn_once(path, "checkpoint %s does not verify and is passed over")

    @staticmethod
    def _verify(path: Path, job_id: str) -> Checkpoint | None:
        try:
            manifest = Manifest.model_validate_json((path / MANIFEST).read_bytes())
            names = (FINAL, f"{manifest.token}-{manifest.samples_done}")
            if manifest.job_id != job_id or path.name not in names:
                return None
            files = {}
            for name, entry in manifest.files.items():
                if Path(name).name != name:
                    return None
                files[name] = (path / name).read_bytes()
                if FileEntry.of(files[name]) != entry:
                    return None
        except (OSError, ValueError):
            return None
        return Checkpoint(path, manifest.token, manifest.samples_done, files)

    def _prune(self, folder: Path, job_id: str, token: int) -> None:
        """Remove checkpoints older than the last valid ones, and the files of crashed writers."""
        kept = list(islice(self._trustworthy(folder, job_id), _KEPT))
        if len(kept) == _KEPT:
            oldest = (kept[-1].token, kept[-1].samples_done)
            for number, samples_done in self._published(folder):
                if (number, samples_done) < oldest:
                    shutil.rmtree(folder / f"{number}-{samples_done}", ignore_errors=True)
        for path in folder.glob(f"{_UNFINISHED_PREFIX}*"):
            writer = path.name.removeprefix(_UNFINISHED_PREFIX).partition("-")[0]
            if writer.isdecimal() and int(writer) <= token:
                shutil.rmtree(path, ignore_errors=True)


def _warn_once(path: Path, message: str) -> None:
    if path not in _logged_damaged:
        _logged_damaged.add(path)
        _log.warning(message, path)


def _publish(target: Path, files: Mapping[str, bytes], manifest: Manifest) -> None:
    # Not `mkdtemp`, whose folder has other rights than the process's umask gives.
    unfinished = target.parent / f"{_UNFINISHED_PREFIX}{manifest.token}-{secrets.token_hex(8)}"
    unfinished.mkdir()
    try:
        for name, content in files.items():
            write_to_disk(unfinished / name, content)
        text = json.dumps(manifest.model_dump(), indent=2, sort_keys=True)
        write_to_disk(unfinished / MANIFEST, text.encode())
        sync_folder(unfinished)
        unfinished.rename(target)
        sync_folder(target.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
