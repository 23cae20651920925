"""Pairs that wait to be resumed in the mode of their merge, after their nodes were lost or given to others
(Ymir, section 5.2)."""

from collections.abc import Mapping, Sequence

from streams.policies.merging.tuning_job import TuningJob

Pair = tuple[TuningJob, TuningJob]


def pair_of(job: TuningJob, jobs: Mapping[str, TuningJob]) -> Pair | None:
    """Return the pair in which a job waits, in the order of its task; None if it waits in none.

    Args:
        jobs: the live jobs of the zone.
    """
    partner = None if job.merge is None else jobs.get(job.merge.partner)
    if partner is None or job.merge is None or job.merge.place is None or partner.merge is None:
        return None
    if partner.is_ending or partner.merge.place is None or partner.merge.partner != job.job_id:
        return None
    return (job, partner) if job.merge.place == "first" else (partner, job)


def is_joint(job: TuningJob) -> bool:
    """Return whether the last merge of a job is spatial, so that its jobs resume only together."""
    return job.merge is not None and job.merge.mode == "spatial"


def keep(jobs: Sequence[TuningJob]) -> None:
    """Let the two jobs of an ended task wait as a pair."""
    first, second = jobs
    assert first.merge is not None
    assert second.merge is not None
    first.merge.place, second.merge.place = "first", "second"
