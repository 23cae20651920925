"""Whether the disks have room for the node's files."""

import errno
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_BYTES_PER_MIB = 1024 * 1024


class NoRoomError(RuntimeError):
    """The node cannot write what it must, whatever it is given. The message is for an operator."""

    def __init__(self, shortage: str, needed_bytes: int) -> None:
        super().__init__(shortage)
        self.needed_bytes = needed_bytes
        """What there must be room for before it makes sense to go on."""


@dataclass(frozen=True)
class Room:
    """The folders that a node writes to."""

    folders: Mapping[str, Path]
    """By what an operator calls them."""
    least_free_bytes: int
    """Without so much besides what is needed nothing is begun: others write to the disk, too."""

    def lacking(self, needed_bytes: int, reserve: int = 1) -> str | None:
        """What is too little for so many bytes and `reserve` times the least free space; None if nothing is.

        A quota may allow less than the disk has, which `refused` finds out.
        """
        wanted = needed_bytes + reserve * self.least_free_bytes
        for name, folder in self.folders.items():
            try:
                free = shutil.disk_usage(folder).free
            except OSError as error:
                return f"the {name} {folder}: {error.strerror}"
            if free < wanted:
                return (
                    f"the {name} {folder} has {free / _BYTES_PER_MIB:.1f} MiB free and needs "
                    f"{wanted / _BYTES_PER_MIB:.1f} MiB"
                )
        return None

    def refused(self, needed_bytes: int) -> str | None:
        """Why a file of so many bytes cannot be written, by writing one; None if it can."""
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


def is_for_want_of_room(error: BaseException) -> bool:
    """Whether an error may go away by itself, once somebody has made room."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
