"""The manifest of the experts policy."""

from schemas.experts.commands import ExpertsPlaced, RanksAssigned, RanksReleased
from schemas.experts.outcomes import PlacementDecided, QueuedRanks, RanksChanged
from schemas.experts.reports import ExpertsProfiled, ExpertsRouted
from schemas.experts.settings import ExpertsPolicy
from schemas.experts.workload import ExpertsTerms, MoeServeWorkload, MoeTrainWorkload
from schemas.fleet import FLEET
from schemas.kind import Input, PolicyKind

EXPERTS = PolicyKind(
    settings=ExpertsPolicy,
    zone="streams.policies.experts.zone:ExpertsZone",
    workloads=(MoeTrainWorkload, MoeServeWorkload),
    terms=(ExpertsTerms,),
    evidence=(QueuedRanks,),
    inputs=(Input(ExpertsProfiled, FLEET), Input(ExpertsRouted, FLEET)),
    outcomes=(RanksChanged, PlacementDecided, RanksAssigned, ExpertsPlaced, RanksReleased),
    reasons={
        "job.admitted": ("queued",),
        "job.rejected": ("larger_than_the_zone",),
        "job.refunded": ("time_over",),
        "event.ignored": ("job_ending", "unusable_report"),
    },
    warm_up="streams.policies.experts.warm_up:warm_up_events",
)
