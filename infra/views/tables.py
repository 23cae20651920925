"""A board as a live table, what happens on it as plain lines, and a log's figures as a table."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from infra.views.board import Board, JobRow
from infra.views.summary import Summary
from infra.views.text import units
from schemas.auction.batches import BatchProblem
from schemas.auction.evidence import JobReplanned, evidence_of
from schemas.codec import Decision
from schemas.decisions import (
    CellAccepted,
    JobAdmitted,
    JobCompleted,
    JobRefunded,
    JobRejected,
    JobWithdrawn,
    NodeStatusChanged,
)
from schemas.solves import SolveRequested

_STYLES = {"admitted": "cyan", "rejected": "dim", "refunded": "red", "withdrawn": "dim", "completed": "green"}
_BAR_WIDTH = 10
CAUSES = {
    "finished_early": "work done early",
    "replanned": "plans made again",
    "refunded": "refunds in full",
    "failed": "jobs at fault",
    "withdrawn": "withdrawals",
}
"""How a difference between planned and realised welfare is called."""


def board_view(board: Board, most_jobs: int) -> RenderableType:
    """Nodes, and the jobs of most interest: those that train, then those to come, then the latest others."""
    nodes = Table("node", "type", "status", "compute price", "used ahead", "slot", "trains")
    for node in board.nodes.values():
        style = "red" if node.status == "down" else ""
        slot = "–" if node.slot is None else str(node.slot)
        price = None if node.prices is None else node.prices.mean_compute_price_micros
        used = "–" if node.prices is None else f"{node.prices.compute_used_share:.0%}"
        nodes.add_row(
            node.node,
            node.gpu_type,
            Text(node.status, style),
            units(price),
            used,
            slot,
            ", ".join(node.jobs) or "–",
        )
    jobs = Table("job", "user", "bid", "price", "state", "node", "done", "loss", "by")
    for row in _chosen(board, most_jobs):
        jobs.add_row(*_cells(board, row))
    ratio = "–" if board.proven_ratio is None else f"{board.proven_ratio:.2f}"
    counts = _counts(board)
    head = (
        f"cell {board.cell}: {len(board.jobs)} bids, {counts}; revenue {units(board.revenue_micros)}, "
        f"welfare planned {units(board.planned_welfare_micros)}, realised "
        f"{units(board.realised_welfare_micros)}, proven ratio of the plans {ratio}"
    )
    return Group(Text(head), nodes, jobs)


def happening(decision: Decision) -> str | None:
    """A line for a decision that a watcher wants to hear of; None for the others."""
    outcome = decision.outcome
    match outcome:
        case CellAccepted():
            return f"cell {decision.cell} accepted"
        case JobAdmitted():
            bid_micros = evidence_of(outcome).bid_micros
            bid = f"({outcome.reason})" if bid_micros is None else f"bid {units(bid_micros)}"
            return f"{outcome.job_id} admitted: {bid}, pays {units(outcome.payment_micros)}"
        case JobRejected():
            evidence = evidence_of(outcome)
            lowest = evidence.lowest_winning_bid_micros
            price = "" if lowest is None else f", {units(lowest)} would have won"
            bid = outcome.detail if evidence.bid_micros is None else f"bid {units(evidence.bid_micros)}"
            return f"{outcome.job_id} rejected ({outcome.reason}): {bid}{price}"
        case JobReplanned():
            left = f"{outcome.remaining_samples} samples left"
            return f"{outcome.job_id} planned again ({outcome.reason}): {left}"
        case JobRefunded():
            return f"{outcome.job_id} refunded {units(outcome.refund_micros)} ({outcome.reason})"
        case JobWithdrawn():
            return f"{outcome.job_id} withdrawn"
        case JobCompleted():
            trained = f"{outcome.samples_done} samples, loss {outcome.loss:.3f}"
            return f"{outcome.job_id} completed on {outcome.node}: {trained}"
        case SolveRequested(problem=BatchProblem(bids=bids)):
            return f"zone {outcome.zone} asks a solver to schedule {len(bids)} bids together"
        case NodeStatusChanged():
            words = outcome.detail if outcome.detail.isprintable() else ascii(outcome.detail)
            detail = f": {words}" if words else ""
            return f"{outcome.node} is {outcome.status} ({outcome.reason}){detail}"
        case _:
            return None


def _chosen(board: Board, most_jobs: int) -> list[JobRow]:
    def interest(entry: tuple[int, JobRow]) -> tuple[int, int]:
        number, row = entry
        return (0 if row.node else 1 if not row.is_over else 2, -number)

    ranked = sorted(enumerate(board.jobs.values()), key=interest)
    return [row for _, row in ranked[:most_jobs]]


def _cells(board: Board, row: JobRow) -> list[RenderableType]:
    state = row.state if not row.reason or row.state == "completed" else f"{row.state} ({row.reason})"
    done = "–"
    if row.work_samples and row.state in ("admitted", "completed", "refunded"):
        part = min(row.samples_done / row.work_samples, 1.0)
        filled = round(part * _BAR_WIDTH)
        done = f"{'█' * filled}{'░' * (_BAR_WIDTH - filled)} {row.samples_done}/{row.work_samples}"
    loss = "–"
    if row.loss is not None:
        loss = (
            f"{row.loss:.3f}"
            if row.first_loss in (None, row.loss)
            else f"{row.first_loss:.3f} → {row.loss:.3f}"
        )
    left_s = None
    if row.deadline_s is not None and board.time_s is not None and not row.is_over:
        left_s = row.deadline_s - board.time_s
    return [
        row.job_id,
        row.user,
        units(row.bid_micros),
        units(row.price_micros),
        Text(state, _STYLES.get(row.state, "")),
        row.node or "–",
        done,
        loss,
        "–" if left_s is None else f"{left_s:.0f} s",
    ]


def _counts(board: Board) -> str:
    counts: dict[str, int] = {}
    for row in board.jobs.values():
        counts[row.state] = counts.get(row.state, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none decided"


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
