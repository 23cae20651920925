"""Compile the kernels of deciding before the first event, which would otherwise wait for them."""

from pkgutil import resolve_name

from schemas.codec import Envelope
from schemas.kinds import KINDS
from streams.cell.cell import Cell, LedgerEvent

_TIME = "1970-01-01T00:00:00Z"


def warm_up() -> None:
    """Fold what each installed policy gives to warm up with."""
    stories = dict.fromkeys(kind.warm_up for kind in KINDS.values() if kind.warm_up is not None)
    for story in stories:
        cells: dict[str, Cell] = {}
        for offset, event in enumerate(resolve_name(story)()):
            cell = cells.setdefault(event.cell, Cell(event.cell))
            cell.handle(LedgerEvent(offset, Envelope(f"warm-up-{offset}", "/warm-up", _TIME, event)))
