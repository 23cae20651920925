"""The committed ledger, its chain and its state."""

from pathlib import Path

from schemas.codec import Decision, decode_event_line
from streams.cell.ledger_event import LedgerEvent
from streams.cell.rules import state_digest
from streams.cell.state_machine import SNAPSHOT_VERSION, Cell

LEDGER = Path(__file__).with_name("ledger.jsonl")
CHAIN = Path(__file__).with_name("chain.txt")
STATE = Path(__file__).with_name("state.txt")


def fold() -> tuple[Cell, list[Decision]]:
    """The cell after the ledger, and all that it decided."""
    cell, decisions = Cell("c"), []
    for offset, line in enumerate(LEDGER.read_bytes().splitlines()):
        decisions += cell.handle(LedgerEvent(offset, decode_event_line(line)))
    return cell, decisions


def state_of(cell: Cell) -> str:
    """Return the layout of a cell's packed state, and its digest, as a ledger records it where rules
    change."""
    return f"{SNAPSHOT_VERSION} {state_digest(cell.packed())}\n"
