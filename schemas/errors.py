"""Errors with a message for users."""

from typing import ClassVar

EXIT_INTERRUPTED = 130
"""Status of a command that Ctrl-C has ended."""


class ReadableError(Exception):
    """Its message is for the user of the program: what was wrong, where, and what to do.

    Where there are more lines than one, the first is complete; the others are further faults.
    """

    ends_with_log: ClassVar[bool] = False
    """Whether the further lines are the end of a log instead."""
    exit_status: ClassVar[int] = 1
    """With which a process ends for it."""


class InstallationError(ReadableError):
    """The policies of this process are not installed, or cannot be."""
