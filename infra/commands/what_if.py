"""`millrace simulate --from-ledger`."""

from contextlib import nullcontext
from pathlib import Path

from infra.commands.differences import difference_table, likeness, totals_table
from infra.commands.ledger_check import check_ledger
from infra.commands.log_files import LogFiles
from infra.commands.options import cell_of
from infra.commands.output import console, print_json, progress, remark
from infra.commands.replay import LEDGER_FILE
from infra.errors import CommandError
from infra.simulation.alternative import Alternative, check_comparable, losses
from infra.simulation.what_if import WhatIf, ledger_configuration, recorded, what_if
from schemas.cells import CellConfigured
from streams.heads import Head, KeptHead


def show_what_if(
    ledger: Path,
    cell: str | None,
    kept: list[KeptHead],
    cells: Path | None,
    alternative: Alternative,
    pace: float,
    out: Path | None,
    json: bool,
) -> None:
    """Simulate a recorded ledger under another configuration, and print what differs.

    Args:
        cell: None takes the ledger's only one.
        kept: heads that the ledger must lead to.
        cells: the file that has the other configuration; None starts from the ledger's own.
        alternative: what is changed in it.
        out: where the new log goes, if anywhere.

    Raises:
        CommandError: the change cannot be made, the decisions beside the ledger are not its own, or it does
            not lead to a kept head.
        CellsFileError: the file describes no valid cells.
        ReplayError: the ledger is none.
    """
    own = ledger_configuration(ledger, cell)
    base = own if cells is None else cell_of(cells, own.epoch_s, own.cell)
    other = alternative.of(base, source=str(cells or ledger))
    check_comparable(own, other)
    if out is not None and _same_file(out / LEDGER_FILE, ledger):
        raise CommandError(f"--out {out}: the new log would overwrite the ledger: choose another folder")
    with progress("folding the ledger again"):
        recording, before = recorded(ledger, cell, own)
        head, unproven = check_ledger(ledger, own.cell, kept)
    notes = [*unproven, *alternative.without_effect(base), *losses(own, other)]
    for note in notes:
        remark(note)
    with LogFiles(out) if out is not None else nullcontext() as files, progress("simulating") as done:
        found = what_if(
            ledger,
            recording,
            before,
            other,
            pace,
            on_step=lambda step: None if files is None else files.write([step[0]], step[1]),
            on_progress=done,
        )
    if json:
        print_json({"cell": own.cell, "head": str(head), "notes": notes, **found.as_json()})
    else:
        _print(found, own, head)


def _print(found: WhatIf, own: CellConfigured, head: Head) -> None:
    table = difference_table(found, f"Cell {own.cell}: jobs that differ")
    screen = console()
    screen.print(f"the ledger's head: {own.cell}={head}")
    screen.print(likeness(found))
    screen.print(table if table.row_count else "no job differs")
    screen.print(totals_table(found))


def _same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)
