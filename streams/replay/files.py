"""Log as two files of JSON lines: the ledger, and the decisions in the order of the ledger.

Next to them are the states of cells whose rules changed, each in a separate file.

Each line is canonical to the byte and ends with a line break, so a file has only one valid form. Any change
is detected: here, by line, or when the ledger is folded.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from schemas.codec import InvalidRecordError, decode_ledger_line
from streams.cell.ledger_event import LedgerEvent
from streams.cell.rules import RULES, RuleBook
from streams.replay.heads import Head, HeadCheck, KeptHead
from streams.replay.replay import DecisionRecord, Verdict, claimed_place, fold, verify
from streams.replay.sources import ReplayError, on_disk
from streams.replay.stretches import unpacked_state

LEDGER_FILE, DECISIONS_FILE = "ledger.jsonl", "decisions.jsonl"
"""Usual names of the two files."""
MAX_LINE_BYTES = 64 * 1024 * 1024
STATES_FOLDER = "states"
"""Folder next to the ledger file."""


def verify_files(
    ledger: Path,
    decisions: Path,
    cell: str | None = None,
    kept: Iterable[KeptHead] = (),
    book: RuleBook = RULES,
) -> Verdict:
    """Verify files that `streams.replay.export.export` or a simulation wrote.

    The decisions must be those that the ledger demands, each once and in its order. If one cell is requested,
    the decisions of the others are skipped.

    Args:
        kept: heads that the log must have.
        book: the available rules.

    Raises:
        ReplayError: a file cannot be read, or a line of the ledger is invalid for `read_ledger_file`.
    """
    records = _decisions_file(decisions, cell)

    def find_state(_cell: str, digest: str) -> bytes | None:
        path = state_file(ledger, digest)
        if not path.exists():
            return None
        with opened(path, "rb") as file:
            return unpacked_state(file.read(MAX_LINE_BYTES), digest)

    return on_disk(
        lambda: verify(_events(ledger, cell), records, kept=kept, book=book, find_state=find_state)
    )


def state_file(ledger: Path, digest: str) -> Path:
    """Return the file of a state with a digest that a ledger file names."""
    return ledger.with_name(STATES_FOLDER) / f"{digest}.state"


def fold_file(
    ledger: Path, cell: str | None = None, kept: Iterable[KeptHead] = ()
) -> tuple[dict[str, Head], tuple[str, ...]]:
    """Fold a ledger without its decisions.

    Returns:
        The head of each cell, and a line for each head in `kept` that the ledger does not lead to.

    Raises:
        ReplayError: `read_ledger_file` cannot read the file.
        RulesError: rules that decided some of it are not available.
    """
    check = HeadCheck(kept)
    for _ in fold(_events(ledger, cell), check):
        pass
    return check.heads(), check.faults()


def read_ledger_file(path: Path) -> Iterator[LedgerEvent]:
    """Yield the events of a ledger file, in its order: partition by partition, each by its offsets.

    Raises:
        ReplayError: the file cannot be read, or a line is no event in canonical form, or out of order.
    """
    last_offset, last_offsets = -1, dict[str, int]()
    partition: set[str] = set()
    """Cells of the present partition."""
    for number, line in _lines(path):
        try:
            offset, envelope = decode_ledger_line(line)
        except InvalidRecordError as error:
            raise ReplayError(f"{path}:{number}: not a ledger event with an offset: {error}") from None
        if offset <= last_offset:
            partition.clear()
        cell, last_offset = envelope.event.cell, offset
        if cell in last_offsets and cell not in partition:
            before = last_offsets[cell]
            how = f"comes after {before}" if offset <= before else "comes behind events of another partition"
            raise ReplayError(f"{path}:{number}: cell {cell}: offset {offset} {how}")
        partition.add(cell)
        last_offsets[cell] = offset
        yield LedgerEvent(offset, envelope)


def ledger_line(event: LedgerEvent) -> bytes:
    """Return an event as a line of a ledger file."""
    return event.canonical + b"\n"


def opened(path: Path, mode: str) -> IO[bytes]:
    """Open a file of a log.

    Raises:
        ReplayError: the file cannot be opened.
    """
    if path.is_dir():
        raise ReplayError(f"{path}: a folder: give the ledger file in it, such as {path / 'ledger.jsonl'}")
    try:
        return path.open(mode)
    except OSError as error:
        raise ReplayError(f"{path}: {error.strerror}") from None


def _events(ledger: Path, cell: str | None) -> Iterator[LedgerEvent]:
    return (event for event in read_ledger_file(ledger) if cell in (None, event.envelope.event.cell))


def _decisions_file(path: Path, cell: str | None) -> Iterator[DecisionRecord]:
    for number, line in _lines(path):
        place = claimed_place(line)
        if cell is None or (place is not None and place[0] == cell):
            yield DecisionRecord(line, f"{path}:{number}")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with opened(path, "rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise ReplayError(f"{path}:{number}: longer than {MAX_LINE_BYTES} bytes")
            if not line.endswith(b"\n"):
                raise ReplayError(f"{path}:{number}: the file is cut: its last line has no line break")
            yield number, line[:-1]
