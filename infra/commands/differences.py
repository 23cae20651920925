"""What a what-if found, as tables."""

from collections.abc import Callable

from rich.table import Table

from infra.money import units
from infra.simulation.outcomes import JobOutcome
from infra.simulation.what_if import JobDifference, WhatIf
from infra.summary import Summary


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
            table.add_row(bid.job_id, bid.user, units(bid.bid_micros), *shown)
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
