"""A log's figures as a table."""

from rich.table import Table

from infra.money import units
from infra.summary import Summary

CAUSES = {
    "finished_early": "work done early",
    "replanned": "plans made again",
    "refunded": "refunds in full",
    "failed": "jobs at fault",
    "withdrawn": "withdrawals",
}
"""How a difference between planned and realised welfare is called."""


def summary_table(title: str, summary: Summary) -> Table:
    """One row per figure."""
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_row("bids", str(summary.bids))
    table.add_row("admitted", str(summary.admitted))
    for reason, count in summary.rejected.items():
        table.add_row(f"rejected: {reason}", str(count))
    table.add_row("planned again", str(summary.replanned))
    table.add_row("refunded", str(summary.refunded))
    table.add_row("withdrawn", str(summary.withdrawn))
    table.add_row("nodes lost", str(summary.nodes_lost))
    table.add_row("adapters trained", str(len(summary.adapters)))
    table.add_row("revenue", units(summary.revenue_micros))
    table.add_row("welfare of the plans as admitted", units(summary.planned_welfare_micros))
    ratio = "–" if summary.proven_ratio is None else f"{summary.proven_ratio:.2f}"
    table.add_row("proven ratio (dual bound / welfare of the plans)", ratio)
    table.add_row("welfare realised", units(summary.realised_welfare_micros))
    for cause, micros in summary.welfare_difference_micros.items():
        if micros:
            table.add_row(f"  of the difference: {CAUSES[cause]}", units(micros))
    table.add_row("utilisation", f"{summary.utilisation:.1%}")
    if summary.solves:
        table.add_row("solves, and seconds of solvers", f"{summary.solves}, {summary.solve_s:.1f} s")
        table.add_row("solves that found nothing", str(summary.solves_without_plans))
    return table


def adapter_table(summary: Summary) -> Table:
    """One row per adapter that was trained to its end."""
    table = Table("adapter", "node", "samples", "first loss", "last loss", title_justify="left")
    for adapter in summary.adapters:
        first = "–" if adapter.first_loss is None else f"{adapter.first_loss:.3f}"
        table.add_row(adapter.job_id, adapter.node, str(adapter.samples), first, f"{adapter.last_loss:.3f}")
    return table
