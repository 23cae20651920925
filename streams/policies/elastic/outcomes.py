"""Decisions on a job: changes of its workers, releases, and its end."""

from collections.abc import Mapping

from schemas.elastic.commands import Member, ReleaseReason, WorkersReleased
from schemas.elastic.outcomes import JobResized, ResizeReason
from streams.policies.elastic.job import ElasticJob
from streams.policies.gang.gangs import Why

_RELEASE_REASONS: Mapping[ResizeReason, ReleaseReason] = {
    "scaled_in": "scaled_in",
    "scaled_out": "scaled_in",
    "moved": "scaled_in",
    "servers_reclaimed": "scaled_in",
    "preempted": "preempted",
    "node_lost": "node_lost",
    "run_failed": "node_lost",
    "stopped": "withdrawn",
}
"""Reasons of releases, by reason of the change."""


def resized(
    zone: str, job: ElasticJob, before: int, remaining_s: float, why: Why[ResizeReason]
) -> JobResized:
    """Return the decision that a job has other workers than before, or none."""
    return JobResized(
        zone=zone,
        job_id=job.job.job_id,
        generation=job.generation,
        reason=why.reason,
        workers_before=before,
        workers=job.workers,
        pool=job.pool,
        flexible_pool=job.flexible_pool,
        servers=tuple(Member(node=node, workers=count) for node, count in job.members.items()),
        remaining_s=remaining_s,
        samples_done=job.job.samples_done,
        facts=dict(why.facts),
    )


def released(
    zone: str, job: ElasticJob, node: str, generation: int, why: Why[ResizeReason]
) -> WorkersReleased:
    """Return the order to a node to end the workers of a generation."""
    return WorkersReleased(
        zone=zone,
        node=node,
        job_id=job.job.job_id,
        generation=generation,
        run_id=job.run_of(generation),
        reason=_RELEASE_REASONS[why.reason],
        by_s=why.by_s,
    )
