"""The error that ends a command."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.errors import ReadableError


class CommandError(ReadableError):
    """A command cannot do what it was asked to. The message is one line that says why, and what to do."""


@contextmanager
def disk_faults(path: Path) -> Iterator[None]:
    """What the disk refuses within the block ends the command, with a line that names `path`.

    Raises:
        CommandError: in place of an `OSError`.
    """
    try:
        yield
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from None
