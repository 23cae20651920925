"""The manifest of the elastic policy."""

from schemas.elastic.commands import WorkersAssigned, WorkersReleased
from schemas.elastic.outcomes import ElasticForecast, JobProfiled, JobResized, QueuedJob, ServersCleared
from schemas.elastic.settings import ElasticPolicy
from schemas.elastic.staffing import ZoneStaffed
from schemas.elastic.workload import ElasticTerms, ElasticWorkload
from schemas.kind import PolicyKind

ELASTIC = PolicyKind(
    settings=ElasticPolicy,
    zone="streams.policies.elastic.zone:ElasticZone",
    workloads=(ElasticWorkload,),
    terms=(ElasticTerms,),
    quoted_terms=(ElasticTerms,),
    evidence=(QueuedJob, ElasticForecast),
    outcomes=(JobResized, JobProfiled, ServersCleared, ZoneStaffed, WorkersAssigned, WorkersReleased),
    reasons={
        "job.admitted": ("queued",),
        "job.rejected": ("larger_than_the_zone",),
        "event.ignored": ("job_ending",),
    },
    warm_up="streams.policies.elastic.warm_up:warm_up_events",
    awaits_kernels="streams.policies.elastic.warm_up:searches",
)
