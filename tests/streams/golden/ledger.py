"""The committed ledger and its chain."""

from pathlib import Path

from schemas.codec import Decision, decode_event_line
from streams.cell.cell import Cell, LedgerEvent

LEDGER = Path(__file__).with_name("ledger.jsonl")
CHAIN = Path(__file__).with_name("chain.txt")


def fold() -> tuple[Cell, list[Decision]]:
    """The cell after the ledger, and all that it decided."""
    cell, decisions = Cell("c"), []
    for offset, line in enumerate(LEDGER.read_bytes().splitlines()):
        decisions += cell.handle(LedgerEvent(offset, decode_event_line(line)))
    return cell, decisions
