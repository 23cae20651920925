"""Room on the disks for the node's files."""

import errno
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_BYTES_PER_MIB = 1024 * 1024


class NoRoomError(RuntimeError):
    """The node cannot write its files, whatever commands it gets. The message is for an operator."""

    def __init__(self, shortage: str, needed_bytes: int) -> None:
        super().__init__(shortage)
        self.needed_bytes = needed_bytes
        """Bytes that must fit before the node continues."""


@dataclass(frozen=True)
class DiskSpace:
    """The folders that a node writes to."""

    folders: Mapping[str, Path]
    """Folders, by an operator's name for them."""
    least_free_bytes: int
    """Free space required besides the needed bytes, since other programs write to the disk, too."""

    def lacking(self, needed_bytes: int, reserve: int = 1) -> str | None:
        """Return the shortage for some bytes and `reserve` times the least free space; None if there is
        enough.

        A quota may allow less than the disk has; `refused` detects that.
        """
        needed_bytes_with_reserve = needed_bytes + reserve * self.least_free_bytes
        for name, folder in self.folders.items():
            try:
                free = shutil.disk_usage(folder).free
            except OSError as error:
                return f"the {name} {folder}: {error.strerror}"
            if free < needed_bytes_with_reserve:
                return (
                    f"the {name} {folder} has {free / _BYTES_PER_MIB:.1f} MiB free and needs "
                    f"{needed_bytes_with_reserve / _BYTES_PER_MIB:.1f} MiB"
                )
        return None

    def refused(self, needed_bytes: int) -> str | None:
        """Return why a file of some bytes cannot be written, by a trial write; None if it can."""
        for name, folder in self.folders.items():
            try:
                with tempfile.TemporaryFile(dir=folder) as file:
                    os.posix_fallocate(file.fileno(), 0, max(needed_bytes, 1))
                    file.write(b"\0")
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                mib = needed_bytes / _BYTES_PER_MIB
                return f"the {name} {folder} takes no file of {mib:.1f} MiB: {error.strerror}"
        return None


def is_for_lack_of_room(error: BaseException) -> bool:
    """Return whether an error may disappear once there is room."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
