"""Output of commands: figures on standard output, remarks and progress on standard error."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

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


@contextmanager
def progress(what: str) -> Iterator[Callable[[float], None]]:
    """A progress bar on standard error, if that is a terminal; yields what takes the part that is done."""
    stderr = Console(stderr=True)
    with Progress(
        TextColumn(what),
        BarColumn(),
        TimeElapsedColumn(),
        console=stderr,
        disable=not stderr.is_terminal,
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda part: bar.update(task, completed=part)
