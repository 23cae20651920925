"""`millrace simulate --from-ledger`: its checks, and its results as tables."""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path

from rich.table import Table

from infra.commands.deciding import deciding
from infra.commands.log_files import LogFiles
from infra.commands.options import cell_of
from infra.commands.output import console, print_json, remark
from infra.commands.replay import fault_of
from infra.errors import CommandError
from infra.figures.summary import summarise
from infra.simulation.alternative import Alternative, check_comparable, losses
from infra.simulation.edits import Edits
from infra.simulation.what_if import WhatIf, ledger_configuration, recorded, what_if
from infra.text import units
from infra.views.figures import job_cells
from infra.views.tables import columns_of, state_of, summary_table, zone_tables
from schemas.cells import CellConfigured
from streams.replay.files import DECISIONS_FILE, LEDGER_FILE, fold_file, verify_files
from streams.replay.heads import Head, KeptHead


def likeness(found: WhatIf) -> str:
    """Return a line that separates effects of the simulation from effects of the change."""
    jobs = list(found.jobs())
    strays = sum(not job.simulation_is_exact for job in jobs)
    if not strays:
        return (
            f"simulated without the change, each of the {len(jobs)} jobs gets the cell's decision: every "
            "difference below is due to the change"
        )
    return (
        f"simulated without the change, {strays} of the {len(jobs)} jobs get another decision than the "
        "cell's: below, before → simulated without the change → after the change"
    )


def difference_table(found: WhatIf, title: str) -> Table:
    """Return a table with a row per job that differs, with a single value where all sides agree."""
    differing = [job for job in found.jobs() if job.differs]
    cells = [
        [
            job_cells(found.before, job.before),
            job_cells(found.simulated, job.simulated),
            job_cells(found.after, job.after),
        ]
        for job in differing
    ]
    columns = columns_of(side for sides in cells for side in sides)
    table = Table(*("job", "user", "offers", "outcome", "pays", *columns), title=title, title_justify="left")
    for job, added in zip(differing, cells, strict=True):
        sides = [job.before, job.simulated, job.after]
        rows = [
            [state_of(side) for side in sides],
            [units(side.payment_micros) for side in sides],
            *([side.get(column, "–") for side in added] for column in columns),
        ]
        table.add_row(
            job.before.job_id,
            job.before.user,
            units(job.before.offered_micros),
            *(_sides(shown, found.simulation_is_exact) for shown in rows),
        )
    return table


def totals_tables(found: WhatIf) -> Iterator[Table]:
    """Yield tables of the cell and of its zones, with a row per figure and a column per side."""
    boards = {"before": found.before, "simulated": found.simulated, "after": found.after}
    if found.simulation_is_exact:
        del boards["simulated"]
    sides = {name: summarise(board) for name, board in boards.items()}
    yield summary_table("Totals", sides)
    yield from zone_tables(sides)


def _sides(shown: list[str], simulation_is_exact: bool) -> str:
    before, _, after = shown
    if len(set(shown)) == 1:
        return before
    return " → ".join([before, after] if simulation_is_exact else shown)


def check_ledger(ledger: Path, cell: str, kept: Iterable[KeptHead]) -> tuple[Head, list[str]]:
    """Fold a cell's ledger, and verify it if its decisions are in the same folder.

    Args:
        ledger: Ledger file.
        cell: Name of the cell.
        kept: Heads of the log that the recomputed decisions must reach.

    Returns:
        The head of the recomputed log, and a warning if there is no file of decisions to compare it with.

    Raises:
        CommandError: the decisions differ from the recomputed ones, or these do not reach a kept head.
        ReplayError: a line is not an event in canonical form, or out of order.
    """
    decisions = ledger.with_name(DECISIONS_FILE)
    if decisions.exists():
        verdict = verify_files(ledger, decisions, cell, kept)
        if not verdict.ok:
            raise CommandError(fault_of(verdict))
        return verdict.heads[cell], []
    heads, faults = fold_file(ledger, cell, kept)
    if faults:
        raise CommandError(faults[0])
    return heads[cell], [f"{decisions} is missing: nothing proves that the ledger is complete"]


def show_what_if(
    ledger: Path,
    cell: str | None,
    kept: list[KeptHead],
    cells: Path | None,
    edits: Edits,
    alternative: Alternative,
    pace: float,
    out: Path | None,
    json: bool,
) -> None:
    """Simulate a recorded ledger under another configuration, and print the differences.

    Args:
        ledger: Ledger file.
        cell: Name of the cell; None chooses the ledger's only one.
        kept: Heads of the log that the recomputed decisions must reach.
        cells: File with the other configuration; None starts from the ledger's own.
        edits: Changes to that configuration's file.
        alternative: Further changes to the configuration.
        pace: Speed of the nodes, relative to the planned one.
        out: Folder for the new log, if any.
        json: Whether to print JSON.

    Raises:
        CommandError: a change is impossible, the decisions in the ledger's folder are not its own, or it does
            not reach a kept head.
        CellsFileError: the file is invalid.
        ReplayError: the ledger is invalid.
    """
    own = ledger_configuration(ledger, cell)
    base = edits.of(own if cells is None else cell_of(cells, own.epoch_s, own.cell))
    other = alternative.of(base, source=str(cells or ledger))
    check_comparable(own, other)
    if out is not None and _same_file(out / LEDGER_FILE, ledger):
        raise CommandError(f"--out {out}: the new log would overwrite the ledger: choose another folder")
    with deciding("replaying the ledger"):
        recording, before = recorded(ledger, cell, own)
        head, unproven = check_ledger(ledger, own.cell, kept)
    notes = [*unproven, *alternative.without_effect(base), *losses(own, other)]
    for note in notes:
        remark(note)
    with LogFiles(out) if out is not None else nullcontext() as files, deciding("simulating") as done:
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
    screen.print(*totals_tables(found), sep="\n")


def _same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)
