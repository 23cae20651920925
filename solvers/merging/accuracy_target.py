"""How many epochs a job alone needs to its accuracy target, from what is known when it is asked.

Eq. 2 (`iterations`) foretells when a loss is flat; a job with an accuracy target ends when that is met.
What tells when is, in this order: an evaluation that has met it already; the curves of earlier jobs of the
same task, by when they came to the asked accuracy; the share of their allowed epochs that jobs of other
tasks needed; and else the limit of the job itself, so that nothing unknown is promised to end early.

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
    target: float
    most_epochs: float
    """After so many it ends, target or not."""
    evaluations: tuple[Evaluation, ...]
    """So far, oldest first."""


class ForetoldEpochs(NamedTuple):
    epochs: float
    """From the first one on."""
    basis: Literal["met", "same_task", "other_tasks", "limit"]


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
    same = [other for other in finished if other.task == job.task]
    if same:
        # A curve that never came there says no more than that it takes long.
        times = [epochs_when_met(other.evaluations, job.target) for other in same]
        epochs = statistics.median(job.most_epochs if time is None else time for time in times)
        return ForetoldEpochs(min(max(epochs, shown), job.most_epochs), "same_task")
    shares = _shares_by_task(finished)
    if shares:
        epochs = statistics.median(shares) * job.most_epochs
        return ForetoldEpochs(min(max(epochs, shown), job.most_epochs), "other_tasks")
    return ForetoldEpochs(job.most_epochs, "limit")


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
