"""Figures of a cell's log, for the end of a simulation and of the demo."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from infra.views.board import Board
from infra.views.policy import PolicyFigures
from infra.views.text import units

F = TypeVar("F", bound=PolicyFigures)


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
    figures: tuple[PolicyFigures, ...]
    """Figures of the policies."""

    def part(self, kind: type[F]) -> F:
        """Return the figures of one policy, which is installed."""
        return next(figures for figures in self.figures if isinstance(figures, kind))

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            **{name: value for name, value in vars(self).items() if name != "figures"},
            "adapters": [asdict(adapter) for adapter in self.adapters],
            "policies": {figures.NAME: part for figures in self.figures if (part := figures.as_json())},
        }

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield each figure with its name, as texts for people."""
        if self.faults:
            yield "events that faulted", str(self.faults)
        yield "jobs", str(self.jobs)
        yield "admitted", str(self.admitted)
        for reason, count in self.rejected.items():
            yield f"rejected: {reason}", str(count)
        yield "completed", str(self.completed)
        yield "refunded", str(self.refunded)
        yield "withdrawn", str(self.withdrawn)
        yield "nodes lost", str(self.nodes_lost)
        if self.servers_lent:
            yield "servers lent", str(self.servers_lent)
        for status, count in self.reclaims.items():
            yield f"reclaims: {status}", str(count)
        yield "revenue", units(self.revenue_micros)
        for figures in self.figures:
            yield from figures.rows()
        if self.utilisation is not None:
            yield "utilisation of all nodes' time", f"{self.utilisation:.1%}"
        if self.solves:
            yield "solves, and seconds of solvers", f"{self.solves}, {self.solve_s:.1f} s"
            yield "solves that found nothing", str(self.solves_without_solution)


def summarise(board: Board) -> Summary:
    """Return the figures so far."""
    jobs = board.jobs
    return Summary(
        events=board.events,
        faults=board.faults,
        jobs=jobs.submitted,
        admitted=sum(job.payment_micros is not None for job in jobs.by_id.values()),
        rejected=dict(jobs.rejections.most_common()),
        completed=len(jobs.in_state("completed")),
        refunded=len(jobs.in_state("refunded")),
        withdrawn=len(jobs.in_state("withdrawn")),
        nodes_lost=board.nodes.losses,
        servers_lent=board.loans.lent,
        reclaims=dict(sorted(board.loans.reclaims.items())),
        revenue_micros=board.revenue_micros,
        utilisation=_utilisation(board),
        solves=board.solves.answers,
        solves_without_solution=board.solves.without_solution,
        solve_s=board.solves.seconds,
        adapters=tuple(
            AdapterSummary(job.job_id, end.node, end.samples_done, job.first_loss, end.loss)
            for job in jobs.by_id.values()
            if (end := job.completed) is not None and end.adapter_path is not None
        ),
        figures=board.figures,
    )


def _utilisation(board: Board) -> float | None:
    if not board.nodes.has_speeds:
        return None
    if board.first_s is None or board.time_s is None:
        return 0.0
    node_s, busy_s = board.nodes.node_s(board.first_s, board.time_s), 0.0
    for (job_id, node, _), run in board.jobs.runs.items():
        job = board.jobs.by_id.get(job_id)  # any node may report a run of an unknown job
        submission = None if job is None else job.submission
        zone = "" if submission is None else submission.zone
        speed = board.nodes.samples_per_s(node, zone, run.time_s)
        if speed is not None:  # a cell ignores reports of nodes of other zones
            busy_s += max(run.samples_done - run.first_samples, 0) / speed
    return busy_s / node_s if node_s else 0.0
