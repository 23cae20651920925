"""Jobs of an elastic zone: requests with their abilities, as workloads and submissions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from infra.workloads.elastic.abilities import Abilities, Ability, ScalingRange, draw_abilities
from infra.workloads.elastic.requests import JobRequest
from infra.workloads.elastic.shapes import shape
from infra.workloads.timed import TimedEvent, check_time
from schemas.elastic.workload import ElasticTerms, ElasticWorkload, TrainingHyperparameters
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset

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
    true_speed: float = 1.0
    """True speed over the one that its workload declares: only a simulated run may read it."""


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
            ability.predicted_over_true,
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


def true_speeds(jobs: Sequence[DrawnElasticJob]) -> dict[str, float]:
    """Return the true speed over the declared one, by id, of jobs whose declared speed is wrong."""
    return {job.job_id: job.true_speed for job in jobs if job.true_speed != 1.0}


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
        # A job that is slower than predicted declared too high a speed.
        samples_per_s=worker_samples_per_s / ability.predicted_over_true,
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
