"""Live table of a board, and tables of a log's figures."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from infra.figures.board import Board
from infra.figures.jobs import JobTimeline
from infra.figures.loans import holdings
from infra.figures.nodes import UNSEEN, NodeState
from infra.figures.summary import Summary
from infra.text import counted, units, written
from infra.views.figures import headline, job_cells, node_cells, summary_rows, zone_rows
from infra.views.sentences import sentence
from schemas.loans import LoanChanged
from schemas.text import plain

_STYLES = {"admitted": "cyan", "rejected": "dim", "refunded": "red", "withdrawn": "dim", "completed": "green"}
_BAR_WIDTH = 10


def board_view(board: Board, most_jobs: int) -> RenderableType:
    """Return tables of nodes and of the most relevant jobs: running, then waiting, then the latest others."""
    counts = board.jobs.states()
    parts = [
        counted(counts.total(), "job"),
        *(f"{count} {state}" for state, count in sorted(counts.items())),
        f"revenue {units(board.jobs.revenue_micros)}",
    ]
    headlines = {zone: headline(figures) for zone, figures in board.zones.items()}
    lending: list[RenderableType] = []
    if board.loans.has_any:
        lending = [_holding_table(board), *_reclaim_lines(board)]
    return Group(
        Text(f"cell {board.cell}: {', '.join(parts)}"),
        *(Text(f"zone {zone}: {line}") for zone, line in headlines.items() if line),
        *_fault_lines(board),
        *lending,
        _node_table(board),
        _job_table(board, _chosen(list(board.jobs.by_id.values()), most_jobs)),
    )


def _fault_lines(board: Board) -> Iterator[Text]:
    """Yield the number of events that faulted and of records left out, with the last of each."""
    fault = board.last_fault
    if fault is not None:
        last = f"the last one {plain(fault.event_id)} ({fault.event_type}): {sentence(fault)}"
        yield Text(f"{board.faults} events faulted, {last}", "red")
    if board.last_omission is not None:
        last = plain(": ".join(board.last_omission))
        yield Text(f"{board.omissions} records are not shown in full, the last one {last}", "red")


def _holding_table(board: Board) -> Table:
    """Return a table of servers by owner and user."""
    table = Table("owner", "load", "user", "servers", "on the way back")
    for holding in holdings(board.nodes.by_id, board.loans):
        load = board.loans.loads.get(holding.owner)
        table.add_row(
            holding.owner,
            "–" if load is None else f"{load:.0%}",
            holding.user,
            str(holding.servers),
            str(holding.draining) if holding.owner != holding.user else "–",
        )
    return table


def _reclaim_lines(board: Board) -> Iterator[Text]:
    """Yield a line for each reclaim that is not over."""
    for reclaim in board.loans.open_reclaims.values():
        back = reclaim.servers - len(reclaim.missing)
        late = ", overdue" if reclaim.is_overdue else ""
        yield Text(
            f"reclaim {reclaim.reclaim_id} of zone {reclaim.owner}: {back} of {reclaim.servers} servers are "
            f"back, due by {written(reclaim.due_s)}{late}",
            "red" if reclaim.is_overdue else "yellow",
        )


def _loan_cells(loan: LoanChanged | None) -> dict[str, str]:
    if loan is None:
        return {}
    if loan.due_s is None:
        return {"loan": f"since {written(loan.since_s)}"}
    return {"loan": f"to be back by {written(loan.due_s)}"}


def _node_table(board: Board) -> Table:
    nodes = list(board.nodes.by_id.values())
    running: dict[str, list[str]] = {}
    for job in board.jobs.live():
        for name in job.nodes:
            running.setdefault(name, []).append(job.job_id)
    loans = board.loans.by_server
    added = [{**_loan_cells(loans.get(node.node)), **node_cells(board, node)} for node in nodes]
    columns = columns_of(added)
    table = Table("node", "zone", "type", "status", *columns, "runs")
    for node, cells in zip(nodes, added, strict=True):
        table.add_row(
            node.node,
            node.zone if node.zone == node.owner else f"{node.zone}, lent by {node.owner}",
            node.gpu_type,
            _status(node),
            *(cells.get(column, "–") for column in columns),
            ", ".join(running.get(node.node, ())) or "–",
        )
    return table


def _status(node: NodeState) -> Text:
    if node.status == UNSEEN:
        return Text("not seen yet")
    return Text(node.status, "red" if node.status == "down" else "")


def _job_table(board: Board, jobs: Sequence[JobTimeline]) -> Table:
    added = [job_cells(board, job) for job in jobs]
    columns = columns_of(added)
    table = Table("job", "user", "offers", "pays", "state", *columns, "node", "done", "loss", "by")
    for job, cells in zip(jobs, added, strict=True):
        table.add_row(
            job.job_id,
            job.user,
            units(job.offered_micros),
            units(job.payment_micros),
            Text(state_of(job), _STYLES.get(job.state, "")),
            *(cells.get(column, "–") for column in columns),
            ", ".join(sorted(job.nodes)) or "–",
            _done(job),
            _loss(job),
            _left(job, board.time_s),
        )
    return table


def columns_of(cells: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the columns that any of these rows has."""
    return list(dict.fromkeys(column for row in cells for column in row))


def state_of(job: JobTimeline) -> str:
    """Return the state of a job, and its reason."""
    return f"{job.state} ({job.reason})" if job.reason else job.state


def _chosen(jobs: Sequence[JobTimeline], most_jobs: int) -> list[JobTimeline]:
    def interest(entry: tuple[int, JobTimeline]) -> tuple[int, int]:
        number, job = entry
        return (0 if job.nodes else 1 if not job.is_over else 2, -number)

    return [job for _, job in sorted(enumerate(jobs), key=interest)[:most_jobs]]


def _done(job: JobTimeline) -> str:
    work = None if job.submission is None else job.submission.workload.total_samples
    if not work or job.payment_micros is None:
        return "–"
    filled = round(min(job.samples_done / work, 1.0) * _BAR_WIDTH)
    return f"{'█' * filled}{'░' * (_BAR_WIDTH - filled)} {job.samples_done}/{work}"


def _loss(job: JobTimeline) -> str:
    first = "" if job.first_loss in (None, job.loss) else f"{_rounded(job.first_loss)} → "
    return f"{first}{_rounded(job.loss)}"


def _rounded(loss: float | None) -> str:
    return "–" if loss is None else f"{loss:.3f}"


def _left(job: JobTimeline, time_s: float | None) -> str:
    latest_s = None if job.submission is None else job.submission.terms.latest_s
    return "–" if latest_s is None or time_s is None or job.is_over else f"{latest_s - time_s:.0f} s"


def summary_table(title: str, sides: Mapping[str, Summary]) -> Table:
    """Return a table with a row per figure and a column per side, with a header for several sides."""
    shown = [dict(summary_rows(side)) for side in sides.values()]
    return _compared(title, list(sides), shown)


def zone_tables(sides: Mapping[str, Summary]) -> Iterator[Table]:
    """Yield a table like that of the summary for each zone with figures."""
    for zone in dict.fromkeys(zone for side in sides.values() for zone in side.zones):
        shown = [dict(zone_rows(side.zones[zone])) if zone in side.zones else {} for side in sides.values()]
        if any(shown):
            yield _compared(f"Zone {zone}", list(sides), shown)


def _compared(title: str, sides: Sequence[str], shown: Sequence[Mapping[str, str]]) -> Table:
    table = Table("", *sides, title=title, title_justify="left", show_header=len(sides) > 1)
    for name in _in_order(shown):
        table.add_row(name, *(rows.get(name, "–") for rows in shown))
    return table


def _in_order(sides: Iterable[Iterable[str]]) -> list[str]:
    """Return all names, each after its predecessor on its own side."""
    names: list[str] = []
    for side in sides:
        place = 0
        for name in side:
            if name not in names:
                names.insert(place, name)
            place = names.index(name) + 1
    return names
