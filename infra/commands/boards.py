"""A board as a live table, and what happens on it as plain lines."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from infra.board import Board, JobRow
from infra.money import units
from schemas.codec import Decision
from schemas.decisions import (
    CellAccepted,
    JobAdmitted,
    JobCompleted,
    JobRefunded,
    JobRejected,
    JobReplanned,
    JobWithdrawn,
    NodeStatusChanged,
)
from schemas.solves import SolveRequested

_STYLES = {"admitted": "cyan", "rejected": "dim", "refunded": "red", "withdrawn": "dim", "completed": "green"}
_BAR_CELLS = 10


def board_view(board: Board, most_jobs: int) -> RenderableType:
    """Nodes, and the jobs of most interest: those that train, then those to come, then the latest others."""
    nodes = Table("node", "type", "status", "compute price", "used ahead", "slot", "trains")
    for node in board.nodes.values():
        style = "red" if node.status == "down" else ""
        slot = "–" if node.slot is None else str(node.slot)
        price = node.prices and node.prices.mean_compute_price_micros
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
            bid, price = units(outcome.bid_micros), units(outcome.payment_micros)
            return f"{outcome.job_id} admitted: bid {bid}, pays {price}"
        case JobRejected():
            lowest = outcome.offer and outcome.offer.lowest_winning_bid_micros
            price = "" if lowest is None else f", {units(lowest)} would have won"
            return f"{outcome.job_id} rejected ({outcome.reason}): bid {units(outcome.bid_micros)}{price}"
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
        case SolveRequested():
            return f"zone {outcome.zone} asks a solver to schedule {len(outcome.bids)} bids together"
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
        filled = round(part * _BAR_CELLS)
        done = f"{'█' * filled}{'░' * (_BAR_CELLS - filled)} {row.samples_done}/{row.work_samples}"
    loss = "–"
    if row.loss is not None:
        loss = (
            f"{row.loss:.3f}"
            if row.first_loss in (None, row.loss)
            else f"{row.first_loss:.3f} → {row.loss:.3f}"
        )
    left_s = row.deadline_s - board.time_s if board.time_s is not None and not row.is_over else None
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
