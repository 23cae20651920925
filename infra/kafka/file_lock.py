"""A lock on a file that the kernel gives back, whatever becomes of its holder."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_INTERVAL_S = 0.05


class LockedError(Exception):
    """Another holder has the lock; `holder` is its process id, None while that is not written yet."""

    def __init__(self, path: Path, holder: int | None) -> None:
        super().__init__(f"{path} is locked by process {holder or 'unknown'}")
        self.holder = holder


class FileLock:
    """An exclusive lock between processes, with the holder's process id in the file.

    A child that inherits `fileno()` holds the lock too: it is free only when both have let go.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def fileno(self) -> int:
        """The descriptor that carries the lock, for a child to inherit.

        Raises:
            ValueError: the lock is not held.
        """
        if self._descriptor is None:
            raise ValueError(f"{self._path} is not locked by this object")
        return self._descriptor

    def acquire(self, timeout_s: float = 0.0) -> None:
        """Take the lock, waiting for it up to `timeout_s`.

        Raises:
            LockedError: another holder has it.
            OSError: the file cannot be opened or locked.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock(descriptor, deadline_s=time.monotonic() + timeout_s)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back; nothing happens when it is not held."""
        if self._descriptor is not None:
            # Closing alone would leave it locked for as long as a forked child has the descriptor.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None

    @contextmanager
    def held(self, timeout_s: float = 0.0) -> Iterator[None]:
        """Hold the lock for the length of a `with` block; raises as `acquire` does."""
        self.acquire(timeout_s)
        try:
            yield
        finally:
            self.release()

    def _lock(self, descriptor: int, deadline_s: float) -> None:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    written = os.pread(descriptor, 32, 0)
                    raise LockedError(self._path, int(written) if written else None) from None
                time.sleep(_POLL_INTERVAL_S)
            else:
                return
