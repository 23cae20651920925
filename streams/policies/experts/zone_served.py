"""Reports of a zone: after changes, at most one per interval."""

from schemas.experts.outcomes import ServedModel, ZoneServed
from streams.policies.experts.job import MoeJob
from streams.policies.experts.popularity import Popularity
from streams.policies.experts.ranks import Ranks

MOST_LISTED = 64
"""Most jobs that train, and most services, in a report, in the order of their submission."""


def served(ranks: Ranks) -> ZoneServed:
    """Return the report of a zone."""
    running = [job for job in ranks.jobs.values() if job.members]
    training = [job.job_id for job in running if job.workload.kind == "moe-train"]
    serving = [job for job in running if job.workload.kind == "moe-serve"]
    return ZoneServed(
        zone=ranks.zone,
        jobs_waiting=ranks.jobs_without_ranks,
        jobs_training=len(training),
        jobs_serving=len(serving),
        training=tuple(training[:MOST_LISTED]),
        serving=tuple(
            _served(job, job.popularity) for job in serving[:MOST_LISTED] if job.popularity is not None
        ),
        devices=ranks.gpus.total,
        used_devices=ranks.gpus.used,
    )


def _served(job: MoeJob, known: Popularity) -> ServedModel:
    return ServedModel(
        job_id=job.job_id,
        revision=known.revision,
        busiest_load=known.busiest_load,
        replicas=known.replicas,
        tokens=known.tokens,
    )
