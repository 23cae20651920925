"""Whether a merge gains, and what it was worth when it is over (Ymir, section 4.3)."""

from typing import Literal

from schemas.merging.estimates import PastMerge
from schemas.merging.outcomes import MergeJudged
from schemas.merging.reports import TaskEvaluated
from streams.policies.merging.asking import Asking
from streams.policies.merging.job import Merge, TuningJob
from streams.policies.merging.task import Task

JudgedReason = Literal["finished", "undone", "ended_early"]


def note_evaluation(job: TuningJob, report: TaskEvaluated) -> None:
    """Keep how well a job does."""
    job.best_accuracy = max(job.best_accuracy or 0.0, report.accuracy)
    merge = job.merge
    if merge is not None and not merge.is_donor:
        merge.best_accuracy = max(merge.best_accuracy or 0.0, report.accuracy)


def fault_of_merge(job: TuningJob, task: Task, report: TaskEvaluated) -> str | None:
    """Why the merge that a job is in is to be undone, by its latest evaluation; None if it is not.

    The receiver of a temporal merge is judged while its donor trains, with the donor's weights.
    """
    merge = job.merge
    if merge is None or merge.is_donor or len(task.job_ids) < 2 or report.epochs < task.watched_epochs:
        return None
    before, best = merge.accuracy_before, merge.best_accuracy
    if before is None or best is None or best > before:
        return None
    return (
        f"after {report.epochs:g} epochs the accuracy of job {job.job_id} is {best:g} at best, and it was "
        f"{before:g} before"
    )


def judged(
    asking: Asking, job: TuningJob, merge: Merge, reason: JudgedReason
) -> tuple[MergeJudged, PastMerge]:
    """What came of a job's merge, as it is told and as it is remembered."""
    kind = asking.knowledge.kinds[job.kind]
    alone = max(round(kind.finished_iterations) if kind.finished else merge.iterations_alone, 1)
    best, reference = merge.best_accuracy, kind.finished_accuracy
    gain = (best - reference) / reference if best and kind.finished_accuracies and reference > 0 else None
    saved = alone - job.iterations if reason == "finished" else -job.iterations
    told = MergeJudged(
        zone=asking.tasks.zone,
        job_id=job.job_id,
        partner=merge.partner,
        mode=merge.mode,
        reason=reason,
        foretold_gain=merge.gain,
        gain=gain,
        foretold_iterations=merge.iterations,
        iterations=job.iterations,
        iterations_alone=alone,
        saved_s=saved * asking.step_s(job, 1),
    )
    target = job.workload.target.accuracy
    met = reason == "finished" and job.iterations > 0 and (target is None or (best or 0.0) >= target)
    remembered = PastMerge(
        mode=merge.mode,
        donor=merge.partner_task,
        donor_samples=merge.partner_samples,
        receiver=kind.task,
        receiver_samples=kind.dataset_samples,
        score=merge.score,
        gain=gain,
        target=target,
        best=best or 0.0,
        epochs=job.iterations / kind.iterations_per_epoch if met else None,
        own_epochs=alone / kind.iterations_per_epoch,
    )
    return told, remembered
