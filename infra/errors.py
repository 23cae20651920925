"""The error that ends a command."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.errors import ReadableError


class CommandError(ReadableError):
    """A failure of a command. The message is one line with the reason and advice."""


@contextmanager
def disk_faults(path: Path) -> Iterator[None]:
    """Raise errors of the disk within the block as errors of the command that name `path`.

    Raises:
        CommandError: in place of an `OSError`.
    """
    try:
        yield
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from None
