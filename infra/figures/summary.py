"""Figures of a cell's log, for the end of a simulation and of the demo."""

from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from infra.figures.board import Board
from infra.figures.zone import ZoneFigures

F = TypeVar("F", bound=ZoneFigures[Any])


@dataclass(frozen=True)
class AdapterSummary:
    """An adapter of a completed job."""

    job_id: str
    node: str | None
    """Node that trained it; None for several nodes."""
    samples: int
    first_loss: float | None
    """First reported loss; None without reports before the end."""
    last_loss: float | None


@dataclass(frozen=True)
class Summary:
    """Counts and sums of one cell's log."""

    events: int
    faults: int
    """Events that changed nothing because folding them raised."""
    jobs: int
    """Number of submissions."""
    admitted: int
    rejected: dict[str, int]
    """Number of rejections by reason."""
    completed: int
    refunded: int
    withdrawn: int
    nodes_lost: int
    servers_lent: int
    """Number of loans of servers."""
    reclaims: dict[str, int]
    """Number of ended reclaims, by whether all servers were back `in_time`, or `late`."""
    revenue_micros: int
    """Payments less refunds."""
    utilisation: float | None
    """Part of the nodes' time, from the first tick to the last, that the trained samples take at full speed.
    The time of a node that is down counts; the time before it has joined or after it has left does not. None
    where a zone's jobs have models of their own, whose full speed is not in the configuration."""
    solves: int
    """Number of answers of solvers."""
    solves_without_solution: int
    """Number of answers without a solution, where the time limit ended the search."""
    solve_s: float
    """Sum of the solvers' times, by their own clocks."""
    adapters: tuple[AdapterSummary, ...]
    """Adapters of the completed jobs that are kept."""
    zones: dict[str, ZoneFigures[Any]]
    """Figures by zone."""

    def part(self, kind: type[F]) -> F:
        """Return the figures of the only zone that has figures of this type.

        Raises:
            ValueError: several zones, or none, have them.
        """
        (figures,) = (figures for figures in self.zones.values() if isinstance(figures, kind))
        return figures

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            **vars(self),
            "adapters": [asdict(adapter) for adapter in self.adapters],
            "zones": {zone: part for zone, figures in self.zones.items() if (part := figures.as_json())},
        }


def summarise(board: Board) -> Summary:
    """Return the figures so far."""
    jobs, ended = board.jobs, board.jobs.ended()
    return Summary(
        events=board.events,
        faults=board.faults,
        jobs=jobs.submitted,
        admitted=jobs.admitted,
        rejected=dict(jobs.rejections.most_common()),
        completed=ended["completed"],
        refunded=ended["refunded"],
        withdrawn=ended["withdrawn"],
        nodes_lost=board.nodes.losses,
        servers_lent=board.loans.lent,
        reclaims=dict(sorted(board.loans.reclaims.items())),
        revenue_micros=jobs.revenue_micros,
        utilisation=_utilisation(board),
        solves=board.solves.answers,
        solves_without_solution=board.solves.without_solution,
        solve_s=board.solves.seconds,
        adapters=tuple(
            AdapterSummary(job.job_id, end.node, end.samples_done, job.first_loss, end.loss)
            for job in jobs.by_id.values()
            if (end := job.completed) is not None and end.adapter_path is not None
        ),
        zones=board.zones,
    )


def _utilisation(board: Board) -> float | None:
    if not board.nodes.has_speeds:
        return None
    if board.first_s is None or board.time_s is None:
        return 0.0
    node_s = board.nodes.node_s(board.first_s, board.time_s)
    busy_s = {number: s for job in board.jobs.by_id.values() for number, s in board.busy_s(job).items()}
    # In the order of the runs' first reports, so that kept jobs sum up alike however they are kept.
    return (board.left_busy_s + sum(busy_s[number] for number in sorted(busy_s))) / node_s if node_s else 0.0
