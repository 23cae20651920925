"""Locks and rights of files."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from portalocker import Lock, LockException

_POLL_INTERVAL_S = 0.05


FOLDER_RIGHTS = 0o700
FILE_RIGHTS = 0o600
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class LockedError(Exception):
    """A lock of another holder; `holder` is its process id, None while that is not written yet."""

    def __init__(self, path: Path, holder: int | None) -> None:
        super().__init__(f"{path} is locked by process {holder or 'unknown'}")
        self.holder = holder


class FileLock:
    """An exclusive lock between processes, with the holder's process id in the file.

    A child that inherits `fileno()` holds the lock too: it is free only when both have released it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock(path, "a+", check_interval=_POLL_INTERVAL_S, fail_when_locked=False)

    @property
    def is_held(self) -> bool:
        return self._lock.fh is not None

    def fileno(self) -> int:
        """Return the descriptor that holds the lock, for a child to inherit.

        Raises:
            ValueError: the lock is not held.
        """
        if self._lock.fh is None:
            raise ValueError(f"{self._path} is not locked by this object")
        return self._lock.fh.fileno()

    def acquire(self, timeout_s: float = 0.0) -> None:
        """Acquire the lock, after a wait of `timeout_s` at most.

        Raises:
            LockedError: another holder has it.
            OSError: the file cannot be opened or locked.
        """
        try:
            file = self._lock.acquire(timeout=timeout_s)
        except LockException:
            written = self._path.read_text().strip()
            raise LockedError(self._path, int(written) if written.isdecimal() else None) from None
        # Unbuffered: after an error of a full disk, no text may be left in a buffer.
        try:
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), str(os.getpid()).encode())
        except OSError:
            self._lock.release()
            raise

    def release(self) -> None:
        if self.is_held:
            self._lock.release()

    @contextmanager
    def held(self, timeout_s: float = 0.0) -> Iterator[None]:
        """Hold the lock within the block; raises as `acquire` does."""
        self.acquire(timeout_s)
        try:
            yield
        finally:
            self.release()


def keep_to_owner(root: Path) -> None:
    """Remove the rights of group and others on a folder and all below it. Links are not followed.

    Raises:
        OSError: a file belongs to another user.
    """
    for path in open_to_others(root):
        with suppress(FileNotFoundError):  # removed meanwhile
            path.chmod(FOLDER_RIGHTS if path.is_dir() else FILE_RIGHTS)


def open_to_others(root: Path) -> Iterator[Path]:
    """Yield the folders and files at and below `root` on which group or others have rights, except links."""
    for folder, _, names in os.walk(root):
        for path in (Path(folder), *(Path(folder, name) for name in names)):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue  # removed meanwhile
            if mode & _OTHERS and not stat.S_ISLNK(mode):
                yield path


def write_private(path: Path, content: bytes) -> None:
    """Write a file that its owner alone may read, whole or not at all."""
    staging = path.with_name(f"{path.name}.new")
    staging.unlink(missing_ok=True)
    # Created with these rights, so it is never readable by others.
    descriptor = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    staging.replace(path)
