"""Simulated jobs that learn by measured curves, steps and merges of a folder of profiles."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from bench.merging.curves import Curve
from bench.merging.measured import Profiles, WorkloadJob
from bench.merging.step_times import PlacementStepTimes
from infra.simulation.merging.truth import AccuracyAfter, ProfileTruth
from schemas.lora import Dataset
from schemas.merging.estimates import MergeMode
from schemas.merging.reports import MeasuredStep
from schemas.merging.workload import TrainingTarget, TuningHyperparameters, TuningWorkload

EPOCHS = 10
"""Epochs after which jobs end, even without their targets."""
ROUNDING = 1e-6
"""Precision of curves; targets are not rounded."""
_EMBEDDING = (1.0,)
"""Constant, because there are no measurements: all tasks look alike, and gains are forecast from outcomes of
other pairs."""


@dataclass(frozen=True)
class Switching:
    """Times to start a task."""

    cold_s: float
    warm_s: float
    loader_s: float = 0.0
    """Part of a cold or a warm start that is saved if the loader is prepared ahead."""


def workload_of(job: WorkloadJob, profiles: Profiles) -> TuningWorkload:
    """Return the workload that a user submits."""
    samples = profiles.samples[job.task]
    hyperparameters = TuningHyperparameters(
        batch_size=job.batch_size, learning_rate=float(job.setting.learning_rate)
    )
    steps = -(-samples // job.batch_size)
    return TuningWorkload(
        model=profiles.model,
        dataset=Dataset(path=f"{job.task}.jsonl", samples=samples),
        validation_path=f"{job.task}.validation.jsonl",
        hyperparameters=hyperparameters,
        target=TrainingTarget(accuracy=min(job.target, 1.0) - ROUNDING, most_iterations=EPOCHS * steps),
        gpus=job.gpus,
    )


class MeasuredTruth:
    """Measured jobs, see `Truth`. Unmeasured pairs have no gain: the receiver learns as if it were alone."""

    def __init__(
        self,
        profiles: Profiles,
        jobs: Sequence[WorkloadJob],
        step_times: PlacementStepTimes,
        switching: Switching,
    ) -> None:
        self._profiles = profiles
        self._settings = {
            (job.task, float(job.setting.learning_rate), job.batch_size): job.setting for job in jobs
        }
        self._step_times = step_times
        self._switching = switching

    def profile(self, workload: TuningWorkload, iterations: int) -> ProfileTruth:
        """Return the beginning of the job's own curve, as a loss."""
        curve = self._single(workload)
        first = curve.values[0]
        per_epoch = workload.iterations_per_epoch
        losses = tuple(1.0 - first * min(step / per_epoch, 1.0) for step in range(1, iterations + 1))
        memory_gib = 0.0
        return ProfileTruth(losses, _EMBEDDING, None, self._switching.loader_s, memory_gib)

    def alone(self, workload: TuningWorkload) -> AccuracyAfter:
        """See `Truth`."""
        return _after(self._single(workload))

    def merged(self, mode: MergeMode, workload: TuningWorkload, partner: TuningWorkload) -> AccuracyAfter:
        """See `Truth`."""
        curve = self._profiles.curves.merged(task_of(partner), task_of(workload), mode)
        return self.alone(workload) if curve is None else _after(curve)

    def as_receiver(self, workload: TuningWorkload, donor: TuningWorkload) -> None:
        """Return None, because there are no measurements."""

    def step(self, workload: TuningWorkload, placement: tuple[int, ...]) -> MeasuredStep:
        """See `Truth`."""
        return self._step_times.fastest(workload.hyperparameters.batch_size, tuple(sorted(placement)))

    def start_s(self, workload: TuningWorkload, is_warm: bool, is_prewarmed: bool) -> float:
        """See `Truth`."""
        del workload
        start_s = self._switching.warm_s if is_warm else self._switching.cold_s
        return start_s - (self._switching.loader_s if is_prewarmed else 0.0)

    def _single(self, workload: TuningWorkload) -> Curve:
        hyperparameters = workload.hyperparameters
        key = (task_of(workload), hyperparameters.learning_rate, hyperparameters.batch_size)
        return self._profiles.single(key[0], self._settings[key])


def task_of(workload: TuningWorkload) -> str:
    """Return the task's name in the measurements."""
    return workload.dataset.path.removesuffix(".jsonl")


def _after(curve: Curve) -> AccuracyAfter:
    """Return the latest value that was measured by then; epochs such as 0.97 count as whole ones."""
    values = {round(epoch): value for epoch, value in zip(curve.epochs, curve.values, strict=True)}

    @lru_cache(maxsize=64)
    def accuracy(epochs: float) -> float:
        seen = [epoch for epoch in values if epoch <= epochs + 1e-6]
        return values[max(seen)] if seen else 0.0

    return accuracy
