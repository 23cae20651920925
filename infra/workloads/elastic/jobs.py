"""Jobs of an elastic zone: requests with their abilities, as workloads and submissions.

Abilities are drawn by seed, as no trace records them (thesis, section 3.7.1).
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from infra.workloads.elastic.requests import DAY_S, JobRequest, chosen_by_share
from infra.workloads.timed import TimedEvent, WorkloadError, check_time
from schemas.elastic.settings import Scenario
from schemas.elastic.workload import ElasticTerms, ElasticWorkload, TrainingHyperparameters
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset

FUNGIBLE_SHARE = 0.21
"""Share of the jobs, and of the load (section 3.7.1)."""

ADDED_WORKER_LOSS = 0.20
"""Share of its throughput that each worker beyond the base demand loses where scaling is imperfect
(section 3.7.2)."""


@dataclass(frozen=True, slots=True)
class ScalingRange:
    """Properties of an elastic job that its scaling may depend on."""

    min_workers: int
    max_workers: int
    gpus_per_worker: int
    family_draw: float
    """Uniform draw from 0 to 1 for the job: for curves that differ by the family of its model."""


Scaling = Callable[[ScalingRange], tuple[float, ...]]
"""The throughput of 1, 2, ... `max_workers` workers over that of one; empty where it is linear."""


def linear(workers: ScalingRange) -> tuple[float, ...]:  # noqa: ARG001
    """Return linear scaling, the thesis' assumption (section 3.5)."""
    return ()


def lossy(workers: ScalingRange) -> tuple[float, ...]:
    """Return scaling in which each worker beyond the base demand adds 20 % less (section 3.7.2)."""
    base = workers.min_workers
    return tuple(
        min(count, base) + (1 - ADDED_WORKER_LOSS) * max(count - base, 0)
        for count in range(1, workers.max_workers + 1)
    )


@dataclass(frozen=True)
class Abilities:
    """Shares of the jobs with each ability. The defaults are the thesis' Basic scenario."""

    scenario: Scenario = "basic"
    """`basic`: fungible and elastic jobs. `advanced`: heterogeneous ones too. `heterogeneous`: elastic and
    heterogeneous ones, but no fungible ones. `ideal`: all jobs have all abilities."""
    elastic_share: float | None = None
    """Share of elastic jobs; None for the scalable ones of the workload. A larger share adds other jobs, a
    smaller one leaves out scalable ones (Figures 3.14 and 3.15). `ideal` ignores it."""
    elastic_are_fungible: bool = True
    """Whether all elastic jobs are fungible, besides 21 % of the load; otherwise the 21 % are drawn among all
    jobs (section 3.7.1 has both readings, erratum L5)."""
    heterogeneous_share: float = 0.10
    """Share of each day's jobs, in the scenarios that have heterogeneous jobs."""
    checkpoint_share: float = 0.0
    """Share of jobs that keep checkpoints; the thesis assumes 0 (section 3.7.3)."""
    scaling: Scaling = linear
    """Scaling of elastic jobs."""

    def __post_init__(self) -> None:
        """Check the shares.

        Raises:
            WorkloadError: one is not from 0 to 1.
        """
        for name in ("elastic_share", "heterogeneous_share", "checkpoint_share"):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise WorkloadError(f"{name} is {share}, expected a number from 0 to 1")


@dataclass(frozen=True, slots=True)
class Ability:
    """Abilities of one job."""

    elastic: bool
    fungible: bool
    heterogeneous: bool
    keeps_checkpoints: bool
    family_draw: float
    """Draw for the family of the job's model, as in `ScalingRange`."""


def draw_abilities(requests: Sequence[JobRequest], abilities: Abilities, seed: int) -> list[Ability]:
    """Draw the abilities of each of the jobs, in their order.

    Each ability has draws of its own, and a larger share of jobs contains the smaller one of the same seed:
    workloads differ only in the share that is varied.

    Fungible are 21 % of all jobs with 21 % of the load, none of them scalable; and all elastic jobs, because
    the thesis places elastic jobs on loaned servers first (section 3.5.3). In Basic, a quarter of the jobs,
    with 57 % of the load, may run on loaned servers. If elastic jobs are not fungible as such, it is 21 % of
    the jobs and of the load in all, elastic ones among them by chance.
    """
    indices = range(len(requests))
    ideal = abilities.scenario == "ideal"
    elastic = set(indices) if ideal else _elastic(requests, abilities.elastic_share, seed)
    if abilities.scenario == "heterogeneous":
        fungible: set[int] = set()
    else:
        adds = abilities.elastic_are_fungible or ideal
        among = [index for index in indices if not (adds and requests[index].scalable)]
        rng = random.Random(f"{seed}/elastic/fungible")
        fungible = set(chosen_by_share(requests, among, FUNGIBLE_SHARE, FUNGIBLE_SHARE, rng))
        fungible |= elastic if adds else set()
    if ideal:
        heterogeneous = set(indices)
    elif abilities.scenario == "basic":
        heterogeneous = set()
    else:
        heterogeneous = _by_day(requests, abilities.heterogeneous_share, seed)
    checkpoints = _first(indices, abilities.checkpoint_share, random.Random(f"{seed}/elastic/checkpoints"))
    families = random.Random(f"{seed}/elastic/families")
    return [
        Ability(
            elastic=index in elastic,
            fungible=index in fungible,
            heterogeneous=index in heterogeneous,
            keeps_checkpoints=index in checkpoints,
            family_draw=families.random(),
        )
        for index in indices
    ]


def _elastic(requests: Sequence[JobRequest], share: float | None, seed: int) -> set[int]:
    rng = random.Random(f"{seed}/elastic/scaling")
    scalable = [index for index, request in enumerate(requests) if request.scalable]
    if share is None:
        return set(scalable)
    others = [index for index, request in enumerate(requests) if not request.scalable]
    rng.shuffle(scalable)
    rng.shuffle(others)
    return set([*scalable, *others][: round(share * len(requests))])


def _first(indices: Sequence[int], share: float, rng: random.Random) -> set[int]:
    """Return a share of the indices, drawn as the first ones of a random order."""
    order = list(indices)
    rng.shuffle(order)
    return set(order[: round(share * len(order))])


def _by_day(requests: Sequence[JobRequest], share: float, seed: int) -> set[int]:
    """Draw an equal share of each day's jobs ("distributed evenly across 15 days")."""
    rng = random.Random(f"{seed}/elastic/heterogeneous")
    chosen: set[int] = set()
    for _, day in groupby(
        range(len(requests)), key=lambda index: math.floor(requests[index].offset_s / DAY_S)
    ):
        chosen |= _first(list(day), share, rng)
    return chosen


SCALABLE_WORKER_GPUS = 2
"""GPUs of a worker of a scalable job (thesis, Figure 3.3)."""


def shape(request: JobRequest, server_gpus: int) -> tuple[int, int]:
    """Return the number of workers and the GPUs of each; their product is the requested demand.

    A scalable job has workers of two GPUs. Any other has as few equal workers as fit on servers: one up to a
    server's GPUs, else workers of the largest size that divides its demand.
    """
    if request.scalable and request.gpus % SCALABLE_WORKER_GPUS == 0 and server_gpus >= SCALABLE_WORKER_GPUS:
        return request.gpus // SCALABLE_WORKER_GPUS, SCALABLE_WORKER_GPUS
    per_worker = next(
        gpus for gpus in range(min(server_gpus, request.gpus), 0, -1) if request.gpus % gpus == 0
    )
    return request.gpus // per_worker, per_worker


SAMPLES_PER_GPU_S = 300.0
"""Speed of a job on one reference GPU. Traces record no samples, so it only converts GPU time to samples. It
is so high that rounding to whole samples changes no running time by more than 2 ms."""

SCALING_RANGE = 2
"""The most workers of an elastic job over its requested demand (section 3.7.1)."""

SEQUENCES_PER_WORKER = 32
"""Sequences of the global batch per worker, at the requested demand."""

MODEL_FAMILIES = ("resnet50", "vgg16", "bert", "gnmt16")
"""Models of scalable jobs, in turn (Figure 3.3)."""
OTHER_MODEL = "other"

_DATASET_SAMPLES = 1_000_000


@dataclass(frozen=True, slots=True)
class DrawnElasticJob:
    """One job of the workload."""

    offset_s: float
    """Time of submission since the workload's start."""
    job_id: str
    user: str
    workload: ElasticWorkload


def draw_jobs(
    requests: Sequence[JobRequest],
    abilities: Abilities,
    seed: int,
    server_gpus: int = 8,
    id_prefix: str = "job",
) -> list[DrawnElasticJob]:
    """Return a job for each request, in their order.

    The requested demand is the base demand w_min, and the running time of the trace is that at w_min. An
    elastic job may have twice the workers: section 3.7.1 has this range for jobs without one of their own,
    and no range for the others. The work is what w_min workers do in the running time. A baseline that never
    scales thus runs every job as the trace has it, regardless of the share of elastic jobs and their scaling.
    """
    return [
        DrawnElasticJob(
            request.offset_s,
            f"{id_prefix}-{index:05d}",
            request.user,
            _workload(request, ability, abilities, index, server_gpus),
        )
        for index, (request, ability) in enumerate(
            zip(requests, draw_abilities(requests, abilities, seed), strict=True)
        )
    ]


def submissions(
    jobs: Sequence[DrawnElasticJob], cell: str, zone: str, start_s: float
) -> list[TimedEvent[JobSubmitted]]:
    """Return the jobs as events for a zone under the elastic policy; the workload's time 0 is `start_s`.

    Raises:
        WorkloadError: the last time is too late for events.
    """
    if jobs:
        check_time(start_s + jobs[-1].offset_s)
    terms = ElasticTerms()
    return [
        TimedEvent(
            start_s + job.offset_s,
            JobSubmitted(
                cell=cell, job_id=job.job_id, user=job.user, zone=zone, workload=job.workload, terms=terms
            ),
        )
        for job in jobs
    ]


def _workload(
    request: JobRequest, ability: Ability, abilities: Abilities, index: int, server_gpus: int
) -> ElasticWorkload:
    workers, gpus_per_worker = shape(request, server_gpus)
    max_workers = SCALING_RANGE * workers if ability.elastic else workers
    speedup: tuple[float, ...] = ()
    if ability.elastic:
        speedup = abilities.scaling(ScalingRange(workers, max_workers, gpus_per_worker, ability.family_draw))
    worker_samples_per_s = SAMPLES_PER_GPU_S * gpus_per_worker
    at_base = speedup[workers - 1] if speedup else float(workers)
    model = MODEL_FAMILIES[index % len(MODEL_FAMILIES)] if request.scalable else OTHER_MODEL
    return ElasticWorkload(
        work_samples=max(round(request.duration_s * worker_samples_per_s * at_base), 1),
        model=model,
        dataset=_dataset(model),
        hyperparameters=_hyperparameters(workers),
        min_workers=workers,
        max_workers=max_workers,
        gpus_per_worker=gpus_per_worker,
        samples_per_s=worker_samples_per_s,
        speedup=speedup,
        keeps_checkpoints=ability.keeps_checkpoints,
        fungible=ability.fungible,
        heterogeneous=ability.heterogeneous,
    )


@cache
def _dataset(model: str) -> Dataset:
    return Dataset(path=f"drawn/{model}.jsonl", samples=_DATASET_SAMPLES)


@cache
def _hyperparameters(workers: int) -> TrainingHyperparameters:
    return TrainingHyperparameters(global_batch_size=SEQUENCES_PER_WORKER * workers)
