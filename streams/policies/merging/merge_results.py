"""The evaluation of a merge: whether it gains, and its result when it is over (Ymir, section 4.3)."""

from typing import Literal

from schemas.facts import Facts
from schemas.merging.estimates import PastMerge
from schemas.merging.outcomes import MergeEvaluated
from schemas.merging.reports import TaskEvaluated
from schemas.merging.workload import LEAST_ACCURACY
from streams.policies.merging.kind_of_jobs import KindOfJobs
from streams.policies.merging.tuning_job import JobMerge, TuningJob
from streams.policies.merging.tuning_task import TuningTask

MergeEnd = Literal["finished", "undone", "ended_early"]

_LEAST_GAIN, _MOST_GAIN = -0.999, 999.0
"""Limits of a gain. Beyond them, one of the two accuracies is almost 0, so their quotient is meaningless."""


def note_evaluation(job: TuningJob, kind: KindOfJobs, task: TuningTask, report: TaskEvaluated) -> bool:
    """Keep the accuracy of a job and, after the watched epochs, that of its kind alone.

    Returns:
        whether jobs of one kind are compared by this evaluation: the first after the watched epochs.
    """
    compares = report.phase == "own" and not job.is_compared and report.epochs >= task.watched_epochs
    job.is_compared = job.is_compared or compares
    job.best_accuracy = max(job.best_accuracy or 0.0, report.accuracy)
    merge = job.merge
    if merge is not None and not merge.is_donor:
        merge.best_accuracy = max(merge.best_accuracy or 0.0, report.accuracy)
        if merge.equalled_iterations is None and report.phase == "own" and _equals_alone(kind, report):
            merge.equalled_iterations = max(report.iterations, 1)
    elif compares:
        kind.note_watched(job.best_accuracy)
    return compares


def _equals_alone(kind: KindOfJobs, report: TaskEvaluated) -> bool:
    return kind.finished_accuracies > 0 and report.accuracy >= kind.finished_accuracy


def fault_of_merge(
    job: TuningJob, kind: KindOfJobs, task: TuningTask, report: TaskEvaluated, compares: bool
) -> Facts | None:
    """Return why a job's merge is to be undone, by its latest evaluation; None if it is kept.

    The receiver of a temporal merge is evaluated twice: with the donor's weights, while its donor trains; and
    in its own epochs. It gains if its accuracy in these epochs exceeds that before the merge. In its own
    epochs, and in a spatial merge, a job must also exceed the accuracy that its kind has alone after the same
    number of epochs. Otherwise it will not be done sooner, and may never meet its target.
    """
    merge = job.merge
    if merge is None or merge.is_donor or merge.best_accuracy is None or report.epochs < task.watched_epochs:
        return None
    if report.phase == "own" and not compares:
        return None
    best = merge.best_accuracy
    after: Facts = {"job_id": job.job_id, "epochs": report.epochs, "best_accuracy": best}
    alone = kind.accuracy_when_watched
    if compares and alone is not None and best <= alone:
        return {"case": "not_above_alone", **after, "accuracy_alone": alone}
    if merge.accuracy_before is None or best > merge.accuracy_before:
        return None
    return {"case": "not_above_before", **after, "accuracy_before": merge.accuracy_before}


def shortfall_of_merge(job: TuningJob, kind: KindOfJobs, iterations: int) -> Facts | None:
    """Return why a job that is done after some iterations is to be restarted alone; None if it is over.

    In its merge, the job has used all of its iterations and missed its target. Alone it may meet the target,
    and a merge must not cost a job its target. If jobs of its kind missed it alone too, the job is over.
    """
    merge, target = job.merge, job.workload.target.accuracy
    if merge is None or merge.is_donor or target is None or merge.best_accuracy is None:
        return None
    if iterations < job.workload.target.most_iterations or merge.best_accuracy >= target:
        return None
    if kind.finished_accuracies and kind.finished_accuracy < target:
        return None
    return {
        "case": "target_missed",
        "job_id": job.job_id,
        "iterations": iterations,
        "best_accuracy": merge.best_accuracy,
        "target_accuracy": target,
    }


def merge_result(
    zone: str,
    job: TuningJob,
    merge: JobMerge,
    kind: KindOfJobs,
    step_s: float,
    reason: MergeEnd,
    accuracy_alone: float | None,
) -> tuple[MergeEvaluated, PastMerge]:
    """Return the result of a job's merge, as a decision and as a record to keep.

    A job without an accuracy target has gained if it reaches the accuracy of jobs of its kind alone in fewer
    iterations.

    Args:
        step_s: time of a step of the job on one GPU.
        accuracy_alone: accuracy of jobs of its kind alone after as many epochs, with which its gain is
            computed (Eq. 1); None if unknown, and so is the gain. A job that was stopped after some epochs
            has less than others have at their ends, whatever its merge is worth.
    """
    alone = max(round(kind.finished_iterations) if kind.finished else merge.iterations_alone, 1)
    best, gain = merge.best_accuracy, None
    if best and accuracy_alone:
        gain = min(max((best - accuracy_alone) / accuracy_alone, _LEAST_GAIN), _MOST_GAIN)
    target, needed = job.workload.target.accuracy, job.iterations
    met = reason == "finished" and job.iterations > 0 and (target is None or (best or 0.0) >= target)
    if target is None and kind.finished_accuracies:
        # It does all of its iterations in any case. They count as the iterations after which it was as good
        # as alone.
        target = max(kind.finished_accuracy, LEAST_ACCURACY)
        met = met and merge.equalled_iterations is not None
        needed = merge.equalled_iterations or job.iterations
    saved = alone - needed if reason == "finished" else -job.iterations
    decision = MergeEvaluated(
        zone=zone,
        job_id=job.job_id,
        partner=merge.partner,
        mode=merge.mode,
        reason=reason,
        foretold_gain=merge.gain,
        gain=gain,
        foretold_iterations=merge.iterations,
        iterations=job.iterations,
        iterations_alone=alone,
        saved_s=saved * step_s,
    )
    past = PastMerge(
        mode=merge.mode,
        donor=merge.partner_task,
        donor_samples=merge.partner_samples,
        receiver=kind.task,
        receiver_samples=kind.dataset_samples,
        score=merge.score,
        gain=gain,
        target=target,
        best=best or 0.0,
        epochs=needed / kind.iterations_per_epoch if met else None,
        own_epochs=alone / kind.iterations_per_epoch,
        lost_epochs=job.iterations / kind.iterations_per_epoch if reason == "undone" else None,
    )
    return decision, past
