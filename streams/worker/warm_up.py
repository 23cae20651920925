"""Compile the kernels of deciding, or load them from disk, by folding what policies give to warm up with.

`python -P -m streams.worker.warm_up KIND` does it for a worker that decides interpreted meanwhile.
"""

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from threading import Thread

from schemas.codec import Envelope
from schemas.kinds import KINDS
from schemas.services import EXIT_FAILED
from streams.cell.cell import Cell, LedgerEvent

_TIME = "1970-01-01T00:00:00Z"
_LEAST_PRIORITY = 19


def warm_up(kinds: Iterable[str] = KINDS) -> None:
    """Fold what the policies of some kinds give to warm up with."""
    for story in dict.fromkeys(KINDS[kind].warm_up for kind in kinds):
        if story is not None:
            _fold(story)


def _fold(story: str) -> None:
    cells: dict[str, Cell] = {}
    for offset, event in enumerate(resolve_name(story)()):
        cell = cells.setdefault(event.cell, Cell(event.cell))
        cell.handle(LedgerEvent(offset, Envelope(f"warm-up-{offset}", "/warm-up", _TIME, event)))


def _end_with_parent() -> None:
    """End this process when the other end of its standard input closes."""
    # Not by the buffered reader, whose lock the interpreter wants at its end.
    os.read(sys.stdin.fileno(), 1)
    os._exit(EXIT_FAILED)


def _give_precedence() -> None:
    """Have this process run when who decides and who trains leaves it a core."""
    os.nice(_LEAST_PRIORITY)
    # Linux may share the processor among sessions first, and then among the processes of each.
    os.setsid()
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_LEAST_PRIORITY))


if __name__ == "__main__":
    _give_precedence()
    Thread(target=_end_with_parent, daemon=True).start()
    warm_up(sys.argv[1:])
