"""`millrace simulate --from-ledger`: what is checked, and what is found, as tables."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path

from rich.table import Table

from infra.commands.log_files import LogFiles
from infra.commands.options import cell_of
from infra.commands.output import console, print_json, progress, remark
from infra.commands.replay import DECISIONS_FILE, LEDGER_FILE, fault_of
from infra.errors import CommandError
from infra.simulation.alternative import Alternative, check_comparable, losses
from infra.simulation.outcomes import JobOutcome
from infra.simulation.what_if import JobDifference, WhatIf, ledger_configuration, recorded, what_if
from infra.views.summary import Summary
from infra.views.text import units
from schemas.auction.bids import bid_micros_of
from schemas.cells import CellConfigured
from streams.replay.files import fold_file, verify_files
from streams.replay.heads import Head, KeptHead


def likeness(found: WhatIf) -> str:
    """Whether simulating alone changes anything, in a line."""
    jobs = list(found.jobs())
    if found.simulation_is_exact:
        return (
            f"simulated as it was, the ledger gives each of its {len(jobs)} jobs what the cell decided: "
            "every difference below comes of the change"
        )
    strays = sum(job.before != job.simulated for job in jobs)
    return (
        f"simulated as it was, the ledger gives {strays} of its {len(jobs)} jobs something else than the "
        "cell decided: below, before → simulated as it was → after the change"
    )


def difference_table(found: WhatIf, title: str) -> Table:
    """A row per job that differs; a single value where all sides agree on it."""
    table = Table(
        "job", "user", "bid", "outcome", "payment", "finish slot", title=title, title_justify="left"
    )

    def cell(job: JobDifference, show: Callable[[JobOutcome], str]) -> str:
        return _sides([show(job.before), show(job.simulated), show(job.after)], found.simulation_is_exact)

    for job in found.jobs():
        if job.differs:
            bid = job.bid
            shown = (cell(job, show) for show in (_state, _payment, _finish))
            table.add_row(bid.job_id, bid.user, units(bid_micros_of(bid)), *shown)
    return table


def totals_table(found: WhatIf) -> Table:
    """A row per figure, a column per side."""
    before, simulated, after = (side.summary for side in (found.before, found.simulated, found.after))
    sides = [before, after] if found.simulation_is_exact else [before, simulated, after]
    names = ["before", "after"] if found.simulation_is_exact else ["before", "simulated as it was", "after"]
    table = Table("", *names, title="Totals", title_justify="left")
    table.add_row("bids", *(str(side.bids) for side in sides))
    table.add_row("admitted", *(str(side.admitted) for side in sides))
    for reason in dict.fromkeys(reason for side in sides for reason in side.rejected):
        table.add_row(f"rejected: {reason}", *(str(side.rejected.get(reason, 0)) for side in sides))
    table.add_row("completed", *(str(len(side.adapters)) for side in sides))
    table.add_row("planned again", *(str(side.replanned) for side in sides))
    table.add_row("refunded", *(str(side.refunded) for side in sides))
    table.add_row("withdrawn", *(str(side.withdrawn) for side in sides))
    table.add_row("nodes lost", *(str(side.nodes_lost) for side in sides))
    table.add_row("revenue", *(units(side.revenue_micros) for side in sides))
    planned = (units(side.planned_welfare_micros) for side in sides)
    table.add_row("welfare of the plans as admitted", *planned)
    table.add_row("proven ratio (dual bound / welfare of the plans)", *map(_ratio, sides))
    table.add_row("welfare realised", *(units(side.realised_welfare_micros) for side in sides))
    table.add_row("utilisation", *(f"{side.utilisation:.1%}" for side in sides))
    return table


def _sides(shown: list[str], simulation_is_exact: bool) -> str:
    before, _, after = shown
    if len(set(shown)) == 1:
        return before
    return " → ".join([before, after] if simulation_is_exact else shown)


def _state(outcome: JobOutcome) -> str:
    return outcome.state if outcome.reason is None else f"{outcome.state} ({outcome.reason})"


def _payment(outcome: JobOutcome) -> str:
    return "–" if outcome.state in ("rejected", "undecided") else units(outcome.payment_micros)


def _finish(outcome: JobOutcome) -> str:
    return "–" if outcome.finish_slot is None else str(outcome.finish_slot)


def _ratio(summary: Summary) -> str:
    return "–" if summary.proven_ratio is None else f"{summary.proven_ratio:.2f}"


def check_ledger(ledger: Path, cell: str, kept: Iterable[KeptHead]) -> tuple[Head, list[str]]:
    """Fold a cell's ledger again, and verify it where its decisions lie beside it.

    Args:
        kept: heads that it must lead to.

    Returns:
        its head, and a line if nothing but that head shows whether the ledger is whole and unaltered.

    Raises:
        CommandError: the decisions are not those that it demands, or it does not lead to a kept head.
        ReplayError: a line of it is no event in canonical form, or out of order.
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
    return heads[cell], [f"{decisions} is not there: nothing shows that the ledger is whole"]


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
