"""How a zone stands, told when it has changed and at most once in an interval of reports."""

from schemas.experts.outcomes import ServedModel, ZoneServed
from streams.policies.experts.job import MoeJob
from streams.policies.experts.popularity import Popularity
from streams.policies.experts.ranks import Ranks

MOST_TOLD = 64
"""Jobs that train, and services, are told by name, in the order of their submission."""


def served(ranks: Ranks) -> ZoneServed:
    """As it is now."""
    running = [job for job in ranks.jobs.values() if job.members]
    training = [job.job_id for job in running if job.workload.kind == "moe-train"]
    serving = [job for job in running if job.workload.kind == "moe-serve"]
    return ZoneServed(
        zone=ranks.zone,
        jobs_waiting=ranks.jobs_without_ranks,
        jobs_training=len(training),
        jobs_serving=len(serving),
        training=tuple(training[:MOST_TOLD]),
        serving=tuple(
            _served(job, job.popularity) for job in serving[:MOST_TOLD] if job.popularity is not None
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
