"""Isolation of the project's Python processes from their working directory.

For `-m` and `-c`, Python searches the working directory before its own library. That is the user's folder: it
may have a `schemas` or a `token.py`, which must not be imported.
"""

import os
import sys


def python_command(*arguments: str) -> list[str]:
    """Return the command line of an interpreter like this one, without the working directory on its path.

    Its children by multiprocessing are isolated too, since interpreter options are passed on.
    """
    return [sys.executable, "-P", *arguments]


def isolate_children() -> None:
    """Keep the working directory off the path of all interpreters that this process starts from now on.

    This is for processes of multiprocessing, if this process was started without that option.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
