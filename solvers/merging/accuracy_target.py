"""Forecast of the epochs that a job alone needs to its accuracy target.

Eq. 2 (`iterations`) forecasts when a loss is flat; a job with an accuracy target ends when that is met. The
forecast uses the first of these sources that exists:

1. an evaluation that has met it already;
2. curves of earlier jobs of the same task in the same setting: the epochs to the requested accuracy;
3. the share of their allowed epochs that jobs of the same task in other settings needed for their targets:
   with another learning rate, curve, accuracy and target differ;
4. that share for jobs of other tasks;
5. the limit of the job itself, so that an unknown job is not forecast to end early.

Plain arithmetic: it may run in a cell.
"""

import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple


class Evaluation(NamedTuple):
    epochs: float
    """Passes over the data so far."""
    accuracy: float


class TargetedJob(NamedTuple):
    """Job to forecast, or one that has finished."""

    task: str
    """Jobs with the same data are of one task."""
    setting: str
    """Hyperparameters that change the curve, such as learning rate and batch size, in any form."""
    target: float
    most_epochs: float
    """Limit at which it ends, with or without the target."""
    evaluations: tuple[Evaluation, ...]
    """Evaluations so far, oldest first."""


class EpochsForecast(NamedTuple):
    epochs: float
    """Epochs from the first one on."""
    basis: Literal["met", "same_setting", "same_task", "other_tasks", "limit"]


def epochs_to_target(job: TargetedJob, finished: Sequence[TargetedJob]) -> EpochsForecast:
    """Forecast the epochs after which `job` meets its target.

    Args:
        job: the job, with the evaluations of its profile run or training so far.
        finished: jobs that ran alone on the same base model, whether or not they met their targets.

    Returns:
        The forecast, at most the job's own limit.
    """
    met = epochs_when_met(job.evaluations, job.target)
    if met is not None:
        return EpochsForecast(met, "met")
    shown = max((evaluation.epochs for evaluation in job.evaluations), default=0.0)
    epochs, basis = _by_others(job, finished)
    return EpochsForecast(min(max(epochs, shown), job.most_epochs), basis)


def _by_others(
    job: TargetedJob, finished: Sequence[TargetedJob]
) -> tuple[float, Literal["same_setting", "same_task", "other_tasks", "limit"]]:
    of_task = [other for other in finished if other.task == job.task]
    same = [other for other in of_task if other.setting == job.setting]
    if same:
        # A curve that never reached the accuracy shows only that it takes long.
        times = [epochs_when_met(other.evaluations, job.target) for other in same]
        return statistics.median(job.most_epochs if time is None else time for time in times), "same_setting"
    if of_task:
        return statistics.median(_shares_by_task(of_task)) * job.most_epochs, "same_task"
    if finished:
        return statistics.median(_shares_by_task(finished)) * job.most_epochs, "other_tasks"
    return job.most_epochs, "limit"


def epochs_when_met(evaluations: Sequence[Evaluation], target: float) -> float | None:
    """Return the epochs at which an accuracy was first reached; None if it never was."""
    return next((seen.epochs for seen in evaluations if seen.accuracy >= target), None)


def _shares_by_task(finished: Sequence[TargetedJob]) -> list[float]:
    """Return the median share of allowed epochs of each task: a task with many jobs counts once."""
    shares: dict[str, list[float]] = {}
    for other in finished:
        met = epochs_when_met(other.evaluations, other.target)
        shares.setdefault(other.task, []).append(1.0 if met is None else met / other.most_epochs)
    return [statistics.median(of_task) for of_task in shares.values()]
