"""The outcome of a cell's log in figures, for the end of a simulation and of the demo."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from infra.views.board import Board
from infra.views.policy import PolicyFigures
from infra.views.text import units

F = TypeVar("F", bound=PolicyFigures)


@dataclass(frozen=True)
class TrainedAdapter:
    """An adapter that was trained to its end."""

    job_id: str
    node: str | None
    """None where several nodes trained it together."""
    samples: int
    first_loss: float | None
    """As first reported; None where none was reported before the end."""
    last_loss: float | None


@dataclass(frozen=True)
class Summary:
    """Counts and sums of one cell's log."""

    events: int
    faults: int
    """Events that changed nothing because folding them raised."""
    jobs: int
    """Submitted, each time that one was."""
    admitted: int
    rejected: dict[str, int]
    """By reason."""
    completed: int
    refunded: int
    withdrawn: int
    nodes_lost: int
    servers_lent: int
    """Each time that one was."""
    reclaims: dict[str, int]
    """Those that are over, by whether all servers were back `in_time`, or `late`."""
    revenue_micros: int
    """Payments less what was given back."""
    utilisation: float | None
    """The part of the nodes' time, from the first tick to the last, that the samples trained take at full
    speed. The time of a node that is down counts; that before it has joined or after it has left does not.
    None where a zone's jobs bring models of their own, whose full speed no configuration says."""
    solves: int
    """Answers of solvers."""
    solves_without_solution: int
    """Those that found nothing in their time, though there might be something."""
    solve_s: float
    """Time that they took, all together, by their own clocks."""
    adapters: tuple[TrainedAdapter, ...]
    figures: tuple[PolicyFigures, ...]
    """Figures of the policies."""

    def part(self, kind: type[F]) -> F:
        """The figures of one policy, which is installed."""
        return next(figures for figures in self.figures if isinstance(figures, kind))

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **{name: value for name, value in vars(self).items() if name != "figures"},
            "adapters": [asdict(adapter) for adapter in self.adapters],
            "policies": {figures.NAME: part for figures in self.figures if (part := figures.as_json())},
        }

    def rows(self) -> Iterator[tuple[str, str]]:
        """For people: each figure by its name."""
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
    """The figures so far."""
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
            TrainedAdapter(job.job_id, end.node, end.samples_done, job.first_loss, end.loss)
            for job in jobs.by_id.values()
            if (end := job.completed) is not None and end.adapter_path is not None
        ),
        figures=board.figures,
    )


def _utilisation(board: Board) -> float | None:
    if not board.nodes.says_speeds:
        return None
    if board.first_s is None or board.time_s is None:
        return 0.0
    node_s, busy_s = board.nodes.node_s(board.first_s, board.time_s), 0.0
    for (job_id, node, _), run in board.jobs.runs.items():
        job = board.jobs.by_id.get(job_id)  # any node may report a run of a job that there never was
        submission = None if job is None else job.submission
        zone = "" if submission is None else submission.zone
        speed = board.nodes.samples_per_s(node, zone, run.time_s)
        if speed is not None:  # a cell ignores what executors of other nodes report
            busy_s += max(run.samples_done - run.first_samples, 0) / speed
    return busy_s / node_s if node_s else 0.0
