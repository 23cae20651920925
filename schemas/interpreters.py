"""Python processes of ours, isolated from the folder that they are started in.

For `-m` and `-c`, Python searches the working directory before its own library. That is the user's folder: it
may have a `schemas` or a `token.py`, which no process of ours may import.
"""

import os
import sys


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
