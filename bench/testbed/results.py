"""Results of the jobs of a log, of a deployment or of a simulation."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from bench.testbed.fleet import CELL, Calibrated
from infra.commands.log_files import read_log_files
from infra.figures.auction.figures import AuctionFigures
from infra.figures.board import Board
from infra.figures.elastic.figures import ElasticFigures
from infra.simulation.recording import timed
from infra.simulation.simulator import Simulation, Step
from infra.workloads.timed import TimedEvent
from schemas.cells import CellConfigured
from schemas.codec import Decision
from schemas.fleet import RunStarted
from schemas.jobs import JobSubmitted
from streams.cell.ledger_event import LedgerEvent

_TAIL = 0.95


@dataclass(frozen=True)
class JobTimes:
    """A completed job. Times are in seconds from its submission."""

    queuing_s: float
    """Time until it first had a GPU."""
    jct_s: float
    payment_micros: int


@dataclass(frozen=True)
class Results:
    """Results of a log.

    Attributes:
        jobs: completed jobs by id.
        welfare_micros: realised welfare of an auction; 0 under other policies.
        running_time_error_pct: median error of the running times that an elastic zone expected; 0 under other
            policies.
    """

    jobs: dict[str, JobTimes]
    welfare_micros: int
    running_time_error_pct: float = 0.0

    def among(self, job_ids: Iterable[str]) -> "Results":
        """Return the results of some jobs, with the welfare and the error of all."""
        kept = {id: self.jobs[id] for id in job_ids if id in self.jobs}
        return replace(self, jobs=kept)

    @property
    def mean_jct_s(self) -> float:
        """Mean completion time."""
        return fmean(job.jct_s for job in self.jobs.values())

    @property
    def p95_jct_s(self) -> float:
        """95 % quantile of the completion times."""
        times = sorted(job.jct_s for job in self.jobs.values())
        return times[min(int(_TAIL * len(times)), len(times) - 1)]

    @property
    def mean_queuing_s(self) -> float:
        """Mean time until a job first had a GPU."""
        return fmean(job.queuing_s for job in self.jobs.values())

    @property
    def payments_micros(self) -> int:
        """Sum of the payments."""
        return sum(job.payment_micros for job in self.jobs.values())


def read_steps(ledger: Path) -> list[Step]:
    """Read a log of one cell: each event with its time, and the decisions about it.

    Raises:
        CommandError, ReplayError: a file is missing or malformed.
    """
    entries: list[LedgerEvent] = []
    decisions: defaultdict[int, list[Decision]] = defaultdict(list)
    for record in read_log_files(ledger):
        if isinstance(record, Decision):
            decisions[record.place[0]].append(record)
        else:
            entries.append(record)
    return [Step(time_s, entry, decisions[entry.offset]) for time_s, entry in timed(entries)]


def results_of(steps: Sequence[Step]) -> Results:
    """Return the results of the jobs of a log."""
    board = Board(CELL)
    started_s: dict[str, float] = {}
    for step in steps:
        board.fold_step(step.time_s, step.entry, step.decisions)
        event = step.entry.envelope.event
        if isinstance(event, RunStarted):
            started_s.setdefault(event.job_id, step.time_s)
    jobs = {}
    for job in board.jobs.by_id.values():
        begun_s = started_s.get(job.job_id) if job.started_s is None else job.started_s
        if job.completed is not None and job.jct_s is not None and begun_s is not None:
            queuing_s = begun_s - job.submitted_s
            jobs[job.job_id] = JobTimes(queuing_s, job.jct_s, job.payment_micros or 0)
    welfare_micros = sum(
        figures.realised_welfare_micros
        for figures in board.zones.values()
        if isinstance(figures, AuctionFigures)
    )
    errors_pct = [
        figures.results().running_time_error_pct
        for figures in board.zones.values()
        if isinstance(figures, ElasticFigures)
    ]
    return Results(jobs, welfare_micros, *errors_pct)


def simulate(steps: Sequence[Step], calibrated: Calibrated) -> list[Step]:
    """Simulate the cell and the submissions of a log.

    Raises:
        RuntimeError: some jobs are never over.
    """
    (cell, *_) = [event for step in steps if isinstance(event := step.entry.envelope.event, CellConfigured)]
    inputs = [
        TimedEvent(step.time_s, event)
        for step in steps
        if isinstance(event := step.entry.envelope.event, JobSubmitted)
    ]
    simulation = Simulation(cell, inputs, solve_s=calibrated.solve_s, runners=calibrated.runners)
    simulated: list[Step] = []
    simulation.pass_on(simulated.append)
    if simulation.given_up is not None:
        raise RuntimeError(f"the simulation ended unfinished: {simulation.given_up}")
    return simulated
