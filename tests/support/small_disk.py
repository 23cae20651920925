"""A file system of limited size, whose writes fail when it is full."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class SmallDisk:
    """A file system of a few MiB in memory."""

    folder: Path

    @property
    def _filler(self) -> Path:
        return self.folder / "filler"

    def fill(self, leave_bytes: int) -> None:
        """Fill the space up to a rest, though others may write at the same time."""
        with self._filler.open("ab") as file:
            while (left_bytes := self._free_bytes() - leave_bytes) > 0:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, left_bytes)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def _free_bytes(self) -> int:
        status = os.statvfs(self.folder)
        return status.f_bavail * status.f_frsize

    def clear(self) -> None:
        """Free the space."""
        self._filler.unlink()


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[SmallDisk]:
    """Mount a file system on a folder for the length of the block; skip the test where mounting is not
    permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "millrace-test", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounting.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounting.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
