"""Errors with a message for users, and the check for libraries that only some commands and services need."""

import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import ClassVar

EXIT_INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended."""

_DISTRIBUTION = "millrace"
_REQUIREMENT = re.compile(r"""(?P<name>[A-Za-z0-9._-]+).*;.*extra == ['"](?P<extra>[a-z]+)['"]""")


class ReadableError(Exception):
    """An error whose message is for the user: the fault, its place, and the remedy.

    With several lines, the first one is complete, and the others are further faults.
    """

    ends_with_log: ClassVar[bool] = False
    """Whether the further lines are the end of a log instead."""
    exit_status: ClassVar[int] = 1
    """Exit status of a process that ends because of it."""


class InstallationError(ReadableError):
    """The policies of this process are not installed, or cannot be."""


class MissingExtraError(ReadableError):
    """A library of an extra is not installed."""

    def __init__(self, libraries: Sequence[str], extra: str) -> None:
        are = "is" if len(libraries) == 1 else "are"
        super().__init__(
            f"{', '.join(libraries)} {are} not installed: install {_DISTRIBUTION} with its extra `{extra}`"
        )


def libraries_of_extras() -> Mapping[str, Sequence[str]]:
    """Return the distributions of each extra, as in pyproject.toml."""
    libraries: dict[str, list[str]] = {}
    for requirement in metadata.requires(_DISTRIBUTION) or ():
        if found := _REQUIREMENT.match(requirement):
            libraries.setdefault(found["extra"], []).append(found["name"])
    return libraries


def require_extra(extra: str) -> None:
    """Check that an extra is installed.

    Raises:
        MissingExtraError: it is not.
    """
    missing = [name for name in libraries_of_extras().get(extra, ()) if not _is_installed(name)]
    if missing:
        raise MissingExtraError(missing, extra)


def missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return an error with the extra of a missing module; None if no extra has it."""
    module = (error.name or "").partition(".")[0]
    for extra, names in libraries_of_extras().items():
        for name in names:
            if name == module or name.startswith(f"{module}-"):  # faust is a module of faust-streaming
                return MissingExtraError([name], extra)
    return None


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
