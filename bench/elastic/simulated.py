"""A simulated run of the production cell: its parameters, and its stored outcome."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, FiniteFloat, TypeAdapter

from bench.elastic.goodput import family_at, tuned_speedup
from bench.runs import peak_memory_bytes
from infra.figures.board import Board
from infra.figures.distribution import Distribution
from infra.figures.elastic.figures import ElasticFigures
from infra.figures.elastic.results import ElasticResults
from infra.figures.summary import summarise
from infra.simulation.event_queue import Moments
from infra.simulation.lender import lenders_of
from infra.simulation.simulator import Participant, Simulation, Step
from infra.workloads.elastic.calibrated import generate_requests
from infra.workloads.elastic.cluster import TRAINING_GPU, ElasticCluster, cluster_configuration
from infra.workloads.elastic.jobs import Abilities, ScalingRange, draw_jobs, linear, submissions
from infra.workloads.elastic.loads import generate_load, load_reports
from infra.workloads.elastic.requests import DAY_S, JobRequest, window
from schemas.cells import CellConfigured
from schemas.elastic.settings import ElasticPolicy, ReclaimingName, Scenario, SchemeName
from streams.policies.inference.kind import InferencePolicy

ScalingName = Literal["linear", "tuned"]


def tuned(workers: ScalingRange) -> tuple[float, ...]:
    """Return the speedup of a job whose batch is tuned for each number of workers, as Pollux does (thesis,
    section 3.7.1). Its model is drawn from Pollux's list."""
    family = family_at(workers.family_draw)
    return tuned_speedup(family, workers.max_workers, workers.gpus_per_worker)[1:]


_SCALING = {"linear": linear, "tuned": tuned}


@dataclass(frozen=True)
class ElasticSetting:
    """The clusters and the users' requests: the common part of all schemes of a comparison."""

    seed: int = 0
    factor: float = 1.0
    """Size of the clusters relative to the thesis' 3,544 and 4,160 GPUs."""
    first_day: float = 0.0
    """First day of submissions; earlier jobs that would still run are submitted first of all."""
    days: float = 15.0

    def requests(self) -> list[JobRequest]:
        """Return the requests to the training cluster; they do not depend on scheme and abilities."""
        last_day = self.first_day + self.days
        drawn = generate_requests(self.seed, self.cluster.training_gpus, last_day)
        return window(drawn, self.first_day, self.days)

    @property
    def cluster(self) -> ElasticCluster:
        """Servers of both clusters."""
        return ElasticCluster().scaled(self.factor)

    def __str__(self) -> str:
        part = f"day {self.first_day:g} to {self.first_day + self.days:g} of seed {self.seed}"
        cluster = self.cluster
        return f"{cluster.training_gpus:,} + {cluster.inference_gpus:,} GPUs, {part}"


@dataclass(frozen=True)
class ElasticTrial:
    """One simulation to run."""

    setting: ElasticSetting
    scheme: SchemeName = "lyra"
    loans: bool = True
    """Whether inference servers are lent."""
    scenario: Scenario = "basic"
    reclaiming: ReclaimingName = "preemption_cost"
    elastic_share: float | None = None
    """Share of elastic jobs, see `Abilities`; with 0 no job scales."""
    elastic_are_fungible: bool = True
    """Whether all elastic jobs are fungible, see `Abilities`."""
    scaling: ScalingName = "linear"
    alone: bool = False
    """Whether no other run may be parallel, because its times and memory are measured."""

    @property
    def policy(self) -> ElasticPolicy:
        """Policy of the training zone."""
        return ElasticPolicy(
            reference_gpu_type=TRAINING_GPU.name,
            scheme=self.scheme,
            reclaiming=self.reclaiming,
            scenario=self.scenario,
            seed=self.setting.seed,
        )

    @property
    def abilities(self) -> Abilities:
        """Abilities of its jobs."""
        return Abilities(
            scenario=self.scenario,
            elastic_share=self.elastic_share,
            elastic_are_fungible=self.elastic_are_fungible,
            scaling=_SCALING[self.scaling],
        )

    def identity(self) -> dict[str, Any]:
        """Return JSON values that, with the sources, determine the outcome."""
        fields = asdict(self)
        del fields["alone"]
        return fields

    def __str__(self) -> str:
        words = [self.scheme, self.scenario, "loans" if self.loans else "no loans"]
        if self.loans and self.reclaiming != "preemption_cost":
            words.append(self.reclaiming)
        if self.elastic_share is not None:
            words.append(f"{self.elastic_share:.0%} elastic")
        if not self.elastic_are_fungible:
            words.append("21% fungible")
        if self.scaling != "linear":
            words.append(self.scaling)
        return f"{', '.join(words)}: {self.setting}"


LONGEST_DRAIN_DAYS = 20.0
"""Limit on the simulated time after the days of submissions: twice the longest running time. A job
still running then counts with its times up to then."""

_DIGEST_BYTES = 8


@dataclass(frozen=True)
class ElasticRunOutcome:
    """Outcome of a trial."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    requests: str
    """Digest of the requests to the training cluster: results with equal digests are comparable."""
    values: Mapping[str, FiniteFloat]
    """Values by name, see `_values`."""
    queuing_s: Sequence[FiniteFloat]
    """Queuing time of each job, in the order of submission."""
    jct_s: Sequence[FiniteFloat]

    def __getitem__(self, name: str) -> float:
        """Return one of the values.

        Raises:
            KeyError: there is no such value.
        """
        return self.values[name]


OUTCOME = TypeAdapter(ElasticRunOutcome)


def simulate(trial: ElasticTrial) -> ElasticRunOutcome:
    """Run a trial in this process. Its peak memory is that of the whole process."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    setting = trial.setting
    requests = setting.requests()
    jobs = draw_jobs(requests, trial.abilities, setting.seed)
    cluster = setting.cluster
    cell = cluster_configuration(cluster, InferencePolicy(), 0.0, trial.policy)
    participants: list[Participant] = [_Loads(cell, cluster.inference_zone, trial)]
    if trial.loans:
        participants += lenders_of(cell)
    simulation = Simulation(
        cell,
        submissions(jobs, cluster.cell, cluster.training_zone, 0.0),
        participants=participants,
    )
    board = Board(cell.cell)
    end_s, used = _run(simulation, board, setting.days * DAY_S)
    figures = _figures(board)
    lines = figures.tables()["jobs"]
    queuing_s = [_queuing_s(line, end_s) for line in lines]
    jct_s = [_end_s(line, end_s) - line["submitted_s"] for line in lines]
    values = _values(figures.results(), used, queuing_s, jct_s)
    values |= {
        "events": board.events,
        "cpu_s": time.process_time() - cpu_s,
        "wall_s": time.perf_counter() - wall_s,
        "rss_mb": peak_memory_bytes() / 1e6,
    }
    return ElasticRunOutcome(_digest(requests), values, queuing_s, jct_s)


class _Loads:
    """Reports the load of the inference cluster throughout the simulation."""

    def __init__(self, cell: CellConfigured, zone: str, trial: ElasticTrial) -> None:
        days = trial.setting.days + LONGEST_DRAIN_DAYS
        # Loads keep their hour of the day if the first day is a fraction.
        first = trial.setting.first_day
        samples = generate_load(trial.setting.seed, first + days)
        begun = [
            replace(sample, offset_s=sample.offset_s - first * DAY_S)
            for sample in samples
            if sample.offset_s >= first * DAY_S
        ]
        self._reports = [
            (timed.time_s, timed.event) for timed in load_reports(begun, cell.cell, zone, cell.epoch_s)
        ]

    def react(self, step: Step) -> Moments:
        """Return all loads, once the cell is configured."""
        return iter(self._reports if isinstance(step.entry.envelope.event, CellConfigured) else ())


def _run(simulation: Simulation, board: Board, submitted_by_s: float) -> tuple[float, ElasticResults]:
    """Return the time of the end, and the results at the end of the submissions."""
    last_s = submitted_by_s + LONGEST_DRAIN_DAYS * DAY_S
    time_s = 0.0
    used: ElasticResults | None = None
    for step in simulation.steps():
        time_s = step.time_s
        if used is None and time_s > submitted_by_s:
            used = _figures(board).results()
        board.fold_step(step.time_s, step.entry, step.decisions)
        if time_s > last_s:
            break
    return time_s, used or _figures(board).results()


def _figures(board: Board) -> ElasticFigures:
    return summarise(board).part(ElasticFigures)


def _end_s(line: Mapping[str, Any], end_s: float) -> float:
    """Return the end of a job. For a job that was not completed, for example for lack of room in the cell, it
    is the end of the simulation."""
    return float(line["ended_s"]) if line["state"] == "completed" else end_s


def _queuing_s(line: Mapping[str, Any], end_s: float) -> float:
    """Return the queuing time of a job: all of its time if it never started. If it waits at the end, its last
    wait is left out."""
    if line["started_s"] is None:
        return _end_s(line, end_s) - float(line["submitted_s"])
    return float(line["queuing_s"])


def _values(
    figures: ElasticResults, used: ElasticResults, queuing_s: Sequence[float], jct_s: Sequence[float]
) -> dict[str, float]:
    """Return times over all jobs, usage until the last submissions, and all counts."""
    counted = {
        name: float(value)
        for name, value in asdict(figures).items()
        if isinstance(value, int | float) and not name.endswith("_usage")
    }
    usage = {name: value for name, value in asdict(used).items() if name.endswith("_usage")}
    times = {
        f"{kind}_{name}": value
        for kind, all_s in (("queue", queuing_s), ("jct", jct_s))
        for name, value in Distribution.of(all_s).as_json().items()
    }
    flexible_share = figures.flexible_servers / max(figures.reclaimed_servers, 1)
    unfinished = float(figures.jobs - figures.completed)
    return counted | usage | times | {"flexible_share": flexible_share, "unfinished": unfinished}


def _digest(requests: Sequence[JobRequest]) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for request in requests:
        digest.update(repr(request).encode())
    return digest.hexdigest()
