"""Errors with a message for users."""

from typing import ClassVar

EXIT_INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended."""


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
