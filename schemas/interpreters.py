"""Python processes of ours, isolated from the folder that they are started in.

For `-m` and `-c`, Python searches the working directory before its own library. That is the user's folder: it
may have a `schemas` or a `token.py`, which no process of ours may import.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread

from schemas.services import EXIT_FAILED

_LEAST_PRIORITY = 19


def python_command(*arguments: str) -> list[str]:
    """Return the command line of an interpreter like this one, without the working directory on its path.

    What it starts by multiprocessing is isolated too, since that passes interpreter options on.
    """
    return [sys.executable, "-P", *arguments]


def isolate_children() -> None:
    """Keep the working directory off the path of all interpreters that this process starts from now on.

    For processes of multiprocessing, where this process was started without that option.
    """
    os.environ["PYTHONSAFEPATH"] = "1"


def stay_in_background() -> None:
    """Have this process run when others leave it a core, and end when its standard input is closed."""
    os.nice(_LEAST_PRIORITY)
    # Linux may share the processor among sessions first, and then among the processes of each.
    os.setsid()
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_LEAST_PRIORITY))
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # Not by the buffered reader, whose lock the interpreter wants at its end.
    os.read(sys.stdin.fileno(), 1)
    os._exit(EXIT_FAILED)
