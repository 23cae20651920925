"""Decisions on the placements of a job, and the commands that assign its ranks and place its experts."""

from collections.abc import Sequence

from schemas.experts.commands import ExpertsPlaced, RankMember, RanksAssigned
from schemas.experts.outcomes import LayerPlaced, PlacementDecided, PlacementReason
from streams.policies.experts.moe_job import MoeJob


def members_of(job: MoeJob) -> tuple[RankMember, ...]:
    """Return the nodes of a job, in the order of the ranks."""
    return tuple(RankMember(node=node, ranks=ranks) for node, ranks in job.members.items())


def assigned(zone: str, job: MoeJob, report_interval_s: float) -> list[RanksAssigned]:
    """Return the orders to the members to run their ranks of the present generation."""
    known = job.popularity
    order = RanksAssigned(
        zone=zone,
        node=job.leader,
        run_id=job.run_id,
        job_id=job.job_id,
        user=job.job.user,
        generation=job.generation,
        members=members_of(job),
        resume_samples=job.job.samples_done,
        report_interval_s=report_interval_s,
        revision=0 if known is None else known.revision,
        placement=() if known is None else known.placement,
        workload=job.workload,
    )
    return [order.model_copy(update={"node": node}) for node in job.members]


def decided(
    zone: str, job: MoeJob, revision: int, reason: PlacementReason, layers: Sequence[LayerPlaced]
) -> PlacementDecided:
    """Return the decision that layers of a service are placed."""
    return PlacementDecided(
        zone=zone, job_id=job.job_id, revision=revision, reason=reason, layers=tuple(layers)
    )


def placed(zone: str, job: MoeJob, decision: PlacementDecided) -> list[ExpertsPlaced]:
    """Return the orders to the members to apply a placement."""
    order = ExpertsPlaced(
        zone=zone,
        node=job.leader,
        job_id=job.job_id,
        generation=job.generation,
        revision=decision.revision,
        run_id=job.run_id,
        layers=tuple(layer.placement for layer in decision.layers),
    )
    return [order.model_copy(update={"node": node}) for node in job.working]
