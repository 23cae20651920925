"""What a zone says of a job that is over."""

from schemas.base import Outcome
from schemas.decisions import JobCompleted, JobRefunded, JobWithdrawn
from streams.policies.merging.job import TuningJob


def ended(zone: str, job: TuningJob) -> Outcome:
    """Its work is done, its runs failed for good, or its user has withdrawn it."""
    job_id, user = job.job_id, job.job.user
    if (finished := job.finished) is not None:
        return JobCompleted(
            job_id=job_id,
            user=user,
            zone=zone,
            reason="work_done",
            node=finished.node,
            payment_micros=0,
            samples_done=finished.samples_done,
            loss=finished.loss,
            accuracy=job.best_accuracy,
            target_accuracy=job.workload.target.accuracy,
            adapter_path=finished.adapter_path,
            adapter_digest=finished.adapter_digest,
        )
    if job.given_up:
        return JobRefunded(
            job_id=job_id,
            user=user,
            zone=zone,
            reason="run_failed",
            facts=job.given_up,
            remaining_samples=max(job.workload.total_samples - job.job.samples_done, 0),
            refund_micros=0,
            retained_micros=0,
        )
    return JobWithdrawn(
        job_id=job_id, user=user, zone=zone, reason="user_request", returned_micros=0, retained_micros=0
    )
