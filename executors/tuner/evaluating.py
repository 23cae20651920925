"""Evaluations of the jobs of a task: their times and reports."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from executors.tuner.opening import TrainingJob
from executors.tuner.reports import TaskReports
from executors.tuner.settings import TunerSettings
from executors.tuner.task_rank import TaskRank
from executors.tuner.training import TrainingStep

_PER_EPOCH = 4


@dataclass
class _Spell:
    """Losses and samples of a job since its last evaluation."""

    losses: list[float] = field(default_factory=list)
    steps: list[TrainingStep] = field(default_factory=list)


class Evaluations:
    """Evaluations of the jobs of one task."""

    def __init__(
        self, rank: TaskRank, leads: bool, watched_epochs: int, settings: TunerSettings, reports: TaskReports
    ) -> None:
        self._rank = rank
        self._leads = leads
        self._watched_epochs = watched_epochs
        self._settings = settings
        self._reports = reports
        self._spells: dict[str, _Spell] = {}
        self._last_counts: dict[str, int] = {}
        self._evaluating_s = 0.0
        self._training_s = 0.0

    def note(self, active: Sequence[TrainingJob], counts: Sequence[int], step: TrainingStep) -> None:
        """Record a step of the jobs, with the number of sequences of each."""
        self._training_s += step.step_s
        for source, job in enumerate(active):
            self._last_counts[job.job_id] = counts[source]
            spell = self._spells.setdefault(job.job_id, _Spell())
            spell.steps.append(step)
            loss = step.losses[source]
            if loss is not None:
                spell.losses.append(loss)

    def may_be_requested(self, active: Sequence[TrainingJob], counts: Sequence[int]) -> bool:
        """Return whether the next step ends at a fraction of an epoch at which an evaluation may be
        requested."""
        if self._evaluating_s > self._settings.evaluation_share * self._training_s:
            return False
        return any(
            _crosses(job.drawn, counts[source], len(job.loader.training) / _PER_EPOCH)
            for source, job in enumerate(active)
        )

    @staticmethod
    def will_be_due(active: Sequence[TrainingJob], counts: Sequence[int]) -> bool:
        """Return whether the next step is the last of a job, or completes an epoch of its data."""
        return any(
            job.iterations + 1 >= job.order.workload.target.most_iterations
            or _crosses(job.drawn, counts[source], len(job.loader.training))
            for source, job in enumerate(active)
        )

    def measure(
        self, active: Sequence[TrainingJob], watched: TrainingJob | None, *, is_requested: bool
    ) -> dict[str, float]:
        """Measure the accuracy of the jobs if an evaluation is due, and return it by job.

        An evaluation is due at the end of an epoch of any job, and when one is over."""
        due = is_requested or any(self._is_due(job) for job in active)
        if not due:
            return {}
        started_s = time.monotonic()
        accuracies = {}
        for job in active:
            accuracy = self._accuracy(job)
            if accuracy is not None:
                accuracies[job.job_id] = accuracy
                self._report(job, accuracy, "own", job.epochs)
        if watched is not None and active[0].merged_epochs <= self._watched_epochs:
            accuracy = self._accuracy(watched)
            if accuracy is not None:
                self._report(watched, accuracy, "donor", active[0].merged_epochs)
        self._evaluating_s += time.monotonic() - started_s
        return accuracies

    def _is_due(self, job: TrainingJob) -> bool:
        """Return whether the last step was the job's last, or completed an epoch of its data."""
        last = self._last_counts.get(job.job_id, 0)
        return job.iterations >= job.order.workload.target.most_iterations or _crosses(
            job.drawn - last, last, len(job.loader.training)
        )

    def _accuracy(self, job: TrainingJob) -> float | None:
        return accuracy_of(self._rank, job, self._settings)

    def _report(
        self, job: TrainingJob, accuracy: float, phase: Literal["own", "donor"], epochs: float
    ) -> None:
        spell = self._spells.pop(job.job_id, _Spell())
        if self._leads:
            partner = next((each.job_id for each in self._rank.jobs if each is not job), None)
            step = self._rank.measured(spell.steps) if spell.steps else None
            self._reports.evaluated_soon(job, partner, accuracy, phase, epochs, spell.losses, step)


def accuracy_of(rank: TaskRank, job: TrainingJob, settings: TunerSettings) -> float | None:
    """Return a job's accuracy with the present weights; None without validation data."""
    validation = job.loader.validation
    if validation is None:
        return None
    right, total = rank.count_right(job, min(len(validation), settings.evaluation_samples))
    return right / total


def _crosses(drawn: int, count: int, size: float) -> bool:
    """Return whether `count` more samples reach or pass a multiple of `size`."""
    return int((drawn + count) / size) > int(drawn / size)
