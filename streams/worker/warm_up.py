"""Compilation of kernels, or their loading from disk, by folding events that policies provide for it.

`python -P -m streams.worker.warm_up KIND` does it for a worker that interprets them meanwhile.
"""

import sys
from collections.abc import Iterable
from pkgutil import resolve_name

from schemas.codec import Envelope
from schemas.kinds import KINDS
from schemas.services import stay_in_background
from streams.cell.cell import Cell, LedgerEvent
from streams.installation import install_policies

_TIME = "1970-01-01T00:00:00Z"


def warm_up(kinds: Iterable[str] = KINDS) -> None:
    """Fold the warm-up events of some kinds of policies."""
    for story in dict.fromkeys(KINDS[kind].warm_up for kind in kinds):
        if story is not None:
            _fold(story)


def _fold(story: str) -> None:
    cells: dict[str, Cell] = {}
    for offset, event in enumerate(resolve_name(story)()):
        cell = cells.setdefault(event.cell, Cell(event.cell))
        cell.handle(LedgerEvent(offset, Envelope(f"warm-up-{offset}", "/warm-up", _TIME, event)))


if __name__ == "__main__":
    stay_in_background()
    install_policies()
    warm_up(sys.argv[1:])
