"""File modes of whole trees: under a secured deployment, the files are for their owner alone."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FOLDER_RIGHTS = 0o700
FILE_RIGHTS = 0o600
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


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
