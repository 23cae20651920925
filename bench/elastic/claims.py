"""Jobs of unknown and of wrongly declared speed: simulated runs whose workers measure true speeds.

The decisions are those of the product. Speeds are drawn by kind of job, with noise by job and by set of
workers; a set of workers reports its measured steps after a minute.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Literal

from bench.figures import Measurement, Result, Table
from infra.figures.board import Board
from infra.figures.elastic.figures import ElasticFigures
from infra.figures.summary import summarise
from infra.simulation.elastic.virtual_workers import VirtualWorkers, measured_steps
from infra.simulation.simulator import Simulation
from infra.workloads.elastic.cluster import TARIFF, TRAINING_GPU
from infra.workloads.timed import TimedEvent
from schemas.base import Event
from schemas.cells import CellConfigured, Node, Zone
from schemas.elastic.commands import WorkersAssigned
from schemas.elastic.settings import ElasticPolicy
from schemas.elastic.workload import ElasticTerms, ElasticWorkload, TrainingHyperparameters
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset
from schemas.profiles import MeasuredSteps

Claim = Literal["none", "true", "a tenth of the time", "ten times the time"]
"""Speed that the users of a run declare: none, the true one, ten times the true one, or a tenth of it."""

CELL, ZONE = "claims", "training"
_SERVERS, _KINDS, _USERS = 6, 8, 12
_LIARS = 2
"""Users that declare wrongly: a sixth of the jobs."""
BATCH, MICRO_BATCH = 64, 8
_LOAD = 0.9
"""GPU time that the jobs request with their base demand, over that of the servers."""
_MEAN_RUNNING_S = 5_400.0
_RUNNING_SIGMA = 1.0
_JOB_NOISE, _RUN_NOISE = 0.05, 0.05
"""Standard deviation of the logarithm of the speed, by job and by set of workers."""
_DECLARED: Mapping[Claim, float] = {"true": 1.0, "a tenth of the time": 10.0, "ten times the time": 0.1}
"""Declared speed over the true one."""
_WRONG: tuple[Claim, ...] = ("a tenth of the time", "ten times the time")
_JOBS, _QUICK_JOBS, _SEEDS, _QUICK_SEEDS = 600, 200, 5, 2


@dataclass(frozen=True)
class Kind:
    """Jobs of one model: the duration of the parts of their steps, as `StepCurve` has them."""

    pass_s: float
    sample_s: float
    exchange_s: float
    exchange_per_gpu_s: float

    def exchange_of(self, gpus: int) -> float:
        """Return the duration of the exchange between some GPUs."""
        return self.exchange_s + (gpus - 1) * self.exchange_per_gpu_s if gpus > 1 else 0.0

    def step_s(self, gpus: int) -> float:
        """Return the duration of a step of a whole batch."""
        share = math.ceil(BATCH / gpus)
        return math.ceil(share / MICRO_BATCH) * self.pass_s + share * self.sample_s + self.exchange_of(gpus)


@dataclass(frozen=True)
class ClaimedJob:
    """A job and its true speed."""

    offset_s: float
    job_id: str
    user: int
    kind: int
    min_workers: int
    max_workers: int
    work_samples: int
    noise: float
    """Factor on the speed of its kind."""


def kinds_of(seed: int) -> list[Kind]:
    """Draw kinds whose exchange takes 2 to 40 % of a pass, as on measured profiles of two models."""
    draw = random.Random(f"{seed}/claims/kinds")
    kinds = []
    for _ in range(_KINDS):
        sample_s = math.exp(draw.uniform(math.log(0.01), math.log(0.2)))
        fixed_s = draw.uniform(0.1, 1.0) * sample_s * MICRO_BATCH
        exchange_s = draw.uniform(0.02, 0.4) * (fixed_s + sample_s * MICRO_BATCH)
        kinds.append(Kind(fixed_s, sample_s, exchange_s, exchange_s / 5))
    return kinds


def jobs_of(seed: int, count: int, kinds: Sequence[Kind]) -> list[ClaimedJob]:
    """Draw jobs of one to four workers that may have up to four times as many."""
    draw = random.Random(f"{seed}/claims/jobs")
    gpus = _SERVERS * TRAINING_GPU.gpus
    jobs, offset_s = [], 0.0
    for number in range(count):
        kind, workers = draw.randrange(_KINDS), draw.choice((1, 1, 2, 4))
        running_s = _MEAN_RUNNING_S * draw.lognormvariate(-(_RUNNING_SIGMA**2) / 2, _RUNNING_SIGMA)
        steps = max(round(max(running_s, 300.0) / kinds[kind].step_s(workers)), 1)
        jobs.append(
            ClaimedJob(
                offset_s,
                f"job-{number:04d}",
                draw.randrange(_USERS),
                kind,
                workers,
                workers * draw.choice((1, 2, 4)),
                steps * BATCH,
                draw.lognormvariate(0, _JOB_NOISE),
            )
        )
        offset_s += draw.expovariate(1.0) * _MEAN_RUNNING_S * 2.0 / (_LOAD * gpus)
    return jobs


class TrueWorkers(VirtualWorkers):
    """Workers with the speeds of their kinds, which report the steps that they measure."""

    def __init__(self, jobs: Sequence[ClaimedJob], kinds: Sequence[Kind], seed: int) -> None:
        super().__init__(CELL, pace=1.0)
        self._by_id = {job.job_id: job for job in jobs}
        self._kinds, self._seed = kinds, seed

    def _speed(self, command: WorkersAssigned) -> float:
        job = self._by_id[command.job_id]
        noise = random.Random(f"{self._seed}/{command.run_id}").lognormvariate(0, _RUN_NOISE)
        gpus = sum(member.workers for member in command.members)
        return BATCH / self._kinds[job.kind].step_s(gpus) * job.noise * noise

    def _measured(self, command: WorkersAssigned, samples_per_s: float) -> MeasuredSteps:
        kind = self._kinds[self._by_id[command.job_id].kind]
        gpus = sum(member.workers for member in command.members)
        return measured_steps(command, samples_per_s, kind.exchange_of(gpus) / kind.step_s(gpus))


@dataclass(frozen=True)
class ClaimsRun:
    """Results of a run."""

    jct_s: Mapping[str, float]
    """Completion times by job."""
    running_time_error_pct: float
    profile_cost_pct: float
    profiled: int


def simulate(seed: int, count: int, claim: Claim, before: Sequence[TimedEvent[Event]] = ()) -> ClaimsRun:
    """Run drawn jobs, of which the first `_LIARS` users declare a speed, after some events."""
    kinds = kinds_of(seed)
    jobs = jobs_of(seed, count, kinds)
    events = [*before] + [_submitted(job, kinds, claim if job.user < _LIARS else "none") for job in jobs]
    runners = {WorkersAssigned.RUNNER: TrueWorkers(jobs, kinds, seed)}
    board = Board(CELL)
    for step in Simulation(_cell(), events, runners=runners).steps():
        board.fold_step(step.time_s, step.entry, step.decisions)
    figures = summarise(board).part(ElasticFigures)
    results, rows = figures.results(), figures.tables()["jobs"]
    unfinished = [row["job_id"] for row in rows if row["jct_s"] is None]
    if unfinished or len(rows) != count:
        raise RuntimeError(f"{len(rows)} of {count} jobs, {len(unfinished)} of them not completed")
    return ClaimsRun(
        {row["job_id"]: row["jct_s"] for row in rows},
        results.running_time_error_pct,
        results.profile_cost_pct,
        results.profiled,
    )


def measure_claims(quick: bool, seed: int) -> Result:
    """Measure `running_time_error_pct` and `profile_cost_pct` where no job declares a speed. With wrong
    declarations of two of twelve users, measure the change of the mean completion time:
    `lies_cost_others_pct` for the jobs of the others, and `lies_gain_pct` for their own."""
    count, seeds = (_QUICK_JOBS, _QUICK_SEEDS) if quick else (_JOBS, _SEEDS)
    rows = [row for each in range(seed, seed + seeds) for row in _rows(each, count)]
    unknown = [row for row in rows if row["declared"] == "none"]
    lies = [row for row in rows if row["declared"] in _WRONG]
    note = (
        f"{seeds} simulations of {count} jobs of {_KINDS} kinds on {_SERVERS} servers with the product's "
        "decisions; speeds are drawn, with a noise of 5 % by job and by set of workers"
    )
    others, own = (
        {claim: fmean(row[column] for row in lies if row["declared"] == claim) for claim in _WRONG}
        for column in ("others_pct", "liars_pct")
    )
    words = "; ".join(
        f"declared {claim}: {others[claim]:+.2f} %, own {own[claim]:+.2f} %" for claim in others
    )
    return Result(
        (
            Measurement(
                "running_time_error_pct",
                median(row["running_time_error_pct"] for row in unknown),
                f"median over completed jobs, none of which declares a speed; {note}",
                len(unknown),
            ),
            Measurement(
                "profile_cost_pct",
                fmean(row["profile_cost_pct"] for row in unknown),
                "GPU time until a job of an unknown kind is measured, over that of the mean job; " + note,
                len(unknown),
            ),
            Measurement(
                "lies_cost_others_pct",
                max(others.values()),
                f"mean completion time of others, over that if liars declared the truth: {words}; {note}",
                len(lies),
            ),
            Measurement(
                "lies_gain_pct",
                max(-value for value in own.values()),
                f"liars' mean completion time below that if they declared the truth, the larger gain of two "
                f"lies; {note}",
                len(lies),
            ),
        ),
        (Table("claims", rows),),
    )


def _rows(seed: int, count: int) -> list[dict[str, Any]]:
    liars = {job.job_id for job in jobs_of(seed, count, kinds_of(seed)) if job.user < _LIARS}
    truth = simulate(seed, count, "true")
    runs: dict[Claim, ClaimsRun] = {"true": truth, "none": simulate(seed, count, "none")}
    for claim in _WRONG:
        runs[claim] = simulate(seed, count, claim)
    return [
        {
            "seed": seed,
            "declared": claim,
            "others_pct": _change_pct(run, truth, liars, of_liars=False),
            "liars_pct": _change_pct(run, truth, liars, of_liars=True),
            "running_time_error_pct": run.running_time_error_pct,
            "profile_cost_pct": run.profile_cost_pct,
            "profiled": run.profiled,
        }
        for claim, run in runs.items()
    ]


def _change_pct(run: ClaimsRun, truth: ClaimsRun, liars: set[str], of_liars: bool) -> float:
    jobs = [job_id for job_id in truth.jct_s if (job_id in liars) == of_liars]
    return 100 * (fmean(run.jct_s[job] for job in jobs) / fmean(truth.jct_s[job] for job in jobs) - 1)


def _submitted(job: ClaimedJob, kinds: Sequence[Kind], claim: Claim) -> TimedEvent[Event]:
    declared = None
    if claim != "none":
        declared = BATCH / kinds[job.kind].step_s(1) * job.noise * _DECLARED[claim]
    workload = ElasticWorkload(
        work_samples=job.work_samples,
        model=f"model-{job.kind}",
        dataset=Dataset(path=f"data-{job.kind}.jsonl", samples=1_000_000),
        hyperparameters=TrainingHyperparameters(global_batch_size=BATCH, micro_batch_size=MICRO_BATCH),
        min_workers=job.min_workers,
        max_workers=job.max_workers,
        samples_per_s=declared,
    )
    event = JobSubmitted(
        cell=CELL,
        job_id=job.job_id,
        user=f"user-{job.user}",
        zone=ZONE,
        workload=workload,
        terms=ElasticTerms(),
    )
    return TimedEvent(job.offset_s, event)


def _cell() -> CellConfigured:
    gpu = TRAINING_GPU
    return CellConfigured(
        cell=CELL,
        epoch_s=0.0,
        tariffs=(TARIFF,),
        zones=(
            Zone(
                id=ZONE,
                base_model="none",
                base_model_memory_gib=1e-3,
                gpu_types=(gpu,),
                nodes=tuple(
                    Node(id=f"server-{n}", gpu_type=gpu.name, tariff=TARIFF.name) for n in range(_SERVERS)
                ),
                policy=ElasticPolicy(reference_gpu_type=gpu.name, interval_s=60.0),
            ),
        ),
        node_timeout_s=86_400.0,
    )
