"""Output of commands: figures on standard output, remarks on standard error."""

import json
import sys
from typing import Any

from rich.console import Console

from schemas.text import plain

_FILE_WIDTH = 160


def print_json(value: Any) -> None:
    """Print a JSON value on one line of standard output, unbuffered; in ASCII, which any terminal shows."""
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
    sys.stdout.flush()


def print_line(line: str) -> None:
    """Print a line on standard output; text from other users is escaped by `plain`."""
    sys.stdout.write(f"{plain(line)}\n")
    sys.stdout.flush()


def show(json: bool, fields: dict[str, Any], line: str) -> None:
    """Print an answer on standard output: its fields for a program, or a line for people."""
    if json:
        print_json(fields)
    else:
        print_line(line)


def console() -> Console:
    """Return a console on standard output; without a terminal, it is wide enough for every table."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _FILE_WIDTH)


def remark(text: str) -> None:
    """Print a line on standard error, apart from the data on standard output."""
    sys.stderr.write(f"{plain(text)}\n")
    sys.stderr.flush()
