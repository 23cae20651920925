"""A job of an experts zone: its ranks, its progress and its end."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal, Self, cast

from schemas.base import Outcome
from schemas.experts.commands import MoeWorkload
from schemas.experts.workload import MoeServeWorkload
from solvers.experts.drift import DriftRule
from solvers.experts.placement import DeviceGroup
from streams.cell.jobs import Job
from streams.cell.states import NO_STATE, from_state, state_of
from streams.policies.experts.popularity import Popularity
from streams.policies.gang.rigid import RigidGang

_BYTES_PER_JOB = 384
"""Packed numbers of a job and an id of 128 characters, besides names and its end."""
_BYTES_PER_NODE = 8
"""Packed numbers of a node, besides its id."""


@dataclass
class MoeJob(RigidGang):
    """See `RigidGang`. A preempted job gets a new `arrival`."""

    ALL_TRACK_PROGRESS: ClassVar = False

    _: KW_ONLY
    since_s: float
    """Time at which it got its ranks, or since which it waits for some."""
    passed: int = 0
    """Number of smaller jobs that have begun before it."""
    past_ranks_s: float | None = None
    """Duration for which it had ranks in past generations; None if it had none since it was submitted or
    preempted for another."""
    is_awaited: bool = False
    """Whether others were preempted for it, so that no job begins before it."""
    is_profiled: bool = False
    """Whether the present generation has reported the counts of its profile stage."""
    is_time_over: bool = False
    """Whether it ends because the time of a service is over."""
    popularity: Popularity | None = field(default=None, metadata=NO_STATE)
    """Popularity of a service; None before its first report."""

    def __post_init__(self) -> None:
        self.workload = cast(MoeWorkload, self.job.workload)
        """Workload of the job."""

    @property
    def ranks(self) -> int:
        return self.workload.ranks

    @property
    def until_s(self) -> float | None:
        """Time at which it ends at the latest; None without one."""
        return self.workload.requests.until_s if isinstance(self.workload, MoeServeWorkload) else None

    @property
    def cluster(self) -> DeviceGroup:
        """Devices of a service."""
        workload = cast(MoeServeWorkload, self.workload)
        return DeviceGroup(workload.ranks, workload.most_experts_per_device)

    @property
    def is_ending(self) -> bool:
        """Whether it has no further runs."""
        return super().is_ending or self.is_time_over

    def had_ranks_s(self, time_s: float) -> float:
        """Return for how long it has had ranks by now, since it was submitted or preempted for another."""
        return (self.past_ranks_s or 0.0) + (time_s - self.since_s if self.members else 0.0)

    @property
    def state_bytes(self) -> int:
        """Most bytes of it in a snapshot, with the turn of its user."""
        # A node may be a member and done, or else is leaving.
        nodes = (*self.members, *self.members, *self.leaving, self.leader)
        names = sum(_BYTES_PER_NODE + len(node) for node in nodes) + len(self.job.user)
        popularity = 0 if self.popularity is None else self.popularity.state_bytes
        return _BYTES_PER_JOB + names + popularity + self.ending_bytes

    def describe(self, elapsed_s: float) -> dict[str, Any]:
        return {
            **super().describe(elapsed_s),
            "ranks": self.workload.ranks,
            "since_s": self.since_s,
            "passed": self.passed,
            "had_ranks_s": self.past_ranks_s,
            "is_awaited": self.is_awaited,
            "until_s": self.until_s,
            "experts": None if self.popularity is None else self.popularity.describe(),
        }

    def to_state(self) -> list[Any]:
        """Return the state besides the register's part, in types that msgpack writes."""
        return [state_of(self), None if self.popularity is None else self.popularity.state()]

    @classmethod
    def of_state(cls, state: Sequence[Any], jobs: Mapping[str, Job], rule: DriftRule) -> Self:
        own, popularity = state
        job = from_state(cls, own, jobs)
        if popularity is not None:
            job.popularity = Popularity.from_state(popularity, rule, job.cluster)
        return job

    @property
    def end_reason(self) -> Literal["finished", "withdrawn", "failed"] | None:
        """See `GangJob`; a service ends as finished when its time is over."""
        return super().end_reason or ("finished" if self.is_time_over else None)

    def ended(self, zone: str) -> Outcome:
        """Return the decision that it is over, see `GangJob`. A service whose time is over has done its work
        if it has ever run."""
        if not self.is_time_over or super().is_ending:
            return super().ended(zone)
        if not self.generation:
            return self.refunded(zone, "time_over", {})
        return self.completed(zone, self.leader, self.job.samples_done)
