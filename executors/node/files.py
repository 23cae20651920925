"""Files that are written completely or not at all, even in a power failure."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path

PRIVATE = 0o600
"""Rights of a file that holds a secret, for any umask of the process."""


def digest_of(content: bytes) -> str:
    """Return BLAKE2b-256 of a file's content, in hex."""
    return blake2b(content, digest_size=32).hexdigest()


def write_to_disk(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file and sync it to disk.

    Args:
        mode: rights of a new file, less the process's umask.
    """
    with open(path, "wb", opener=partial(os.open, mode=mode)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Sync a folder's entries to disk: new names, renames, removals."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace the content of `path` by `content`, atomically.

    Args:
        mode: rights of the file, less the process's umask.

    Raises:
        OSError: the disk failed; `path` is unchanged, unless only the last step failed.
    """
    unfinished = path.with_name(f".unfinished-{path.name}")
    unfinished.unlink(missing_ok=True)  # it would keep its rights
    write_to_disk(unfinished, content, mode)
    unfinished.rename(path)
    sync_folder(path.parent)


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Replace `path` by a folder of `files`, by plain name.

    A folder cannot be renamed onto another: if one is replaced, `path` is missing for a moment.

    Raises:
        OSError: the disk failed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Names of jobs have no plus, so this is never another job's folder.
    prefix = f".unfinished-{path.name}+"
    for left_over in path.parent.glob(f"{prefix}*"):
        shutil.rmtree(left_over, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
    try:
        (scratch / "new").mkdir()
        for name, content in files.items():
            write_to_disk(scratch / "new" / name, content)
        sync_folder(scratch / "new")
        if path.exists():
            path.rename(scratch / "old")
        (scratch / "new").rename(path)
        sync_folder(path.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
