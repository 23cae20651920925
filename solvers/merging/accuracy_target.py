"""How many epochs a job alone needs to its accuracy target, from what is known when it is asked.

Eq. 2 (`iterations`) foretells when a loss is flat; a job with an accuracy target ends when that is met. What
tells when is, in this order:

1. an evaluation that has met it already;
2. curves of earlier jobs of the same task in the same setting, by when they came to the asked accuracy;
3. the share of their allowed epochs that jobs of the same task in other settings needed for their targets:
   another learning rate leads along another curve to another accuracy, and targets go with that;
4. the same of jobs of other tasks;
5. and else the limit of the job itself, so that nothing unknown is promised to end early.

Plain arithmetic: it may run in a cell.
"""

import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple


class Evaluation(NamedTuple):
    epochs: float
    """How often the data had been used."""
    accuracy: float


class TargetedJob(NamedTuple):
    """A job that wants to know, or one that has finished."""

    task: str
    """Jobs with the same data are of one task."""
    setting: str
    """Hyperparameters that change the curve, such as learning rate and batch size, in any form."""
    target: float
    most_epochs: float
    """After so many it ends, target or not."""
    evaluations: tuple[Evaluation, ...]
    """So far, oldest first."""


class ForetoldEpochs(NamedTuple):
    epochs: float
    """From the first one on."""
    basis: Literal["met", "same_setting", "same_task", "other_tasks", "limit"]


def epochs_to_target(job: TargetedJob, finished: Sequence[TargetedJob]) -> ForetoldEpochs:
    """Foretell when `job` meets its target.

    Args:
        job: with what its profile run or its training has shown so far.
        finished: jobs that ran alone on the same base model, whether or not they met their targets.

    Returns:
        at most the job's own limit.
    """
    met = epochs_when_met(job.evaluations, job.target)
    if met is not None:
        return ForetoldEpochs(met, "met")
    shown = max((evaluation.epochs for evaluation in job.evaluations), default=0.0)
    epochs, basis = _by_others(job, finished)
    return ForetoldEpochs(min(max(epochs, shown), job.most_epochs), basis)


def _by_others(
    job: TargetedJob, finished: Sequence[TargetedJob]
) -> tuple[float, Literal["same_setting", "same_task", "other_tasks", "limit"]]:
    of_task = [other for other in finished if other.task == job.task]
    same = [other for other in of_task if other.setting == job.setting]
    if same:
        # A curve that never came there says no more than that it takes long.
        times = [epochs_when_met(other.evaluations, job.target) for other in same]
        return statistics.median(job.most_epochs if time is None else time for time in times), "same_setting"
    if of_task:
        return statistics.median(_shares_by_task(of_task)) * job.most_epochs, "same_task"
    if finished:
        return statistics.median(_shares_by_task(finished)) * job.most_epochs, "other_tasks"
    return job.most_epochs, "limit"


def epochs_when_met(evaluations: Sequence[Evaluation], target: float) -> float | None:
    """When an accuracy was first seen; None if it never was."""
    return next((seen.epochs for seen in evaluations if seen.accuracy >= target), None)


def _shares_by_task(finished: Sequence[TargetedJob]) -> list[float]:
    """Of each task, the usual share of its allowed epochs: a task with many jobs counts once."""
    shares: dict[str, list[float]] = {}
    for other in finished:
        met = epochs_when_met(other.evaluations, other.target)
        shares.setdefault(other.task, []).append(1.0 if met is None else met / other.most_epochs)
    return [statistics.median(of_task) for of_task in shares.values()]
