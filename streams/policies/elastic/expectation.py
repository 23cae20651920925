"""The expected speeds of a job before its own runs correct them: measured, published, declared or assumed."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from schemas.elastic.outcomes import SpeedFrom
from schemas.elastic.workload import MAX_RUNNING_YEARS, YEAR_S, ElasticWorkload
from solvers.common.step_curve import StepCurve
from solvers.elastic.demand import linear_speedup
from streams.policies.elastic.profiles import KnownSteps

_MOST_SAMPLES_PER_S = 1e9


class Expectation(NamedTuple):
    """Expected speeds of a job on reference GPUs."""

    samples_per_s: float
    """Speed of one worker."""
    speedup: Sequence[float]
    """Speed by number of workers over that of one, from 0 workers on; it never falls."""
    speed_from: SpeedFrom
    relative_error: float | None
    """Expected relative error; None where nothing is measured."""

    @classmethod
    def of(
        cls, workload: ElasticWorkload, known: KnownSteps | None, assumed_running_s: float
    ) -> "Expectation":
        """Return the expected speed of a job: from measured steps of its kind, or as declared. Without both,
        the speed at which it runs for `assumed_running_s` with its base demand.

        Steps with a single number of GPUs show no scaling: then it is as declared.
        """
        declared = declared_speedup(workload)
        if known is None and workload.samples_per_s is not None:
            return cls(workload.samples_per_s, declared, "declared", None)
        if known is None:
            speed = workload.work_samples / assumed_running_s / declared[workload.min_workers]
            return cls(_bounded(workload, speed, declared), declared, "assumed", None)
        curve = known.curve
        speeds = _speeds(workload, curve)
        speedup = tuple(speed / speeds[1] for speed in speeds)
        one_worker = speeds[1]
        if curve.only_gpus is not None and workload.samples_per_s is not None:
            workers = min(max(round(curve.only_gpus / workload.gpus_per_worker), 1), workload.max_workers)
            one_worker, speedup = speeds[workers] / declared[workers], tuple(declared)
        error = curve.relative_error
        return cls(_bounded(workload, one_worker, speedup), speedup, known.speed_from, error)


_linear = lru_cache(maxsize=4_096)(linear_speedup)


def declared_speedup(workload: ElasticWorkload) -> Sequence[float]:
    """Return the declared speed by number of workers over that of one, from 0 workers on; linear without a
    declaration."""
    return (0.0, *workload.speedup) if workload.speedup else _linear(workload.max_workers)


def _speeds(workload: ElasticWorkload, curve: StepCurve) -> tuple[float, ...]:
    """Return the speed (samples/s) by number of workers, from 0 on. It never falls, as schemes expect."""
    shape = workload.hyperparameters
    return _speeds_of(
        curve,
        workload.gpus_per_worker,
        workload.max_workers,
        shape.global_batch_size,
        shape.micro_batch_size,
    )


@lru_cache(maxsize=4_096)
def _speeds_of(
    curve: StepCurve, gpus_per_worker: int, max_workers: int, batch: int, micro_batch: int
) -> tuple[float, ...]:
    steps_s = (
        curve.step_s(workers * gpus_per_worker, batch, micro_batch) for workers in range(1, max_workers + 1)
    )
    return (0.0, *accumulate((batch / step_s for step_s in steps_s), max))


def _bounded(workload: ElasticWorkload, samples_per_s: float, speedup: Sequence[float]) -> float:
    """Return a speed as if declared, at which the job takes ten years at most."""
    longest_s = MAX_RUNNING_YEARS * YEAR_S
    least = workload.work_samples / longest_s / speedup[workload.min_workers]
    return min(max(samples_per_s, least), max(_MOST_SAMPLES_PER_S, least))
