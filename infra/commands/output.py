"""Output of commands: figures on standard output, remarks on standard error."""

import json
import sys
from typing import Any

from rich.console import Console

from schemas.text import plain

_FILE_WIDTH = 160


def print_json(value: Any) -> None:
    """One JSON value on one line of standard output, at once; in ASCII, so a terminal may show it."""
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
    sys.stdout.flush()


def say(line: str) -> None:
    """A line on standard output; text from other users is escaped (see `plain`)."""
    sys.stdout.write(f"{plain(line)}\n")
    sys.stdout.flush()


def show(json: bool, fields: dict[str, Any], line: str) -> None:
    """An answer on standard output: its fields for a program, or a line for people."""
    if json:
        print_json(fields)
    else:
        say(line)


def console() -> Console:
    """Standard output for people; wide enough for every table where it is no terminal."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _FILE_WIDTH)


def remark(text: str) -> None:
    """A line on standard error, where it does not get into anybody's data."""
    sys.stderr.write(f"{plain(text)}\n")
    sys.stderr.flush()
