"""A job of an experts zone: its ranks, how far it is, and how it ends."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal, Self, cast

from schemas.base import Outcome
from schemas.experts.commands import MoeWorkload
from schemas.experts.workload import MoeServeWorkload
from solvers.experts.drift import DriftRule
from solvers.experts.placement import Cluster
from streams.cell.jobs import Job
from streams.cell.states import NO_STATE, from_state, state_of
from streams.policies.experts.popularity import Popularity
from streams.policies.gang.gang import Gang

_BYTES_PER_JOB = 384
"""Packed, beside names, an error, and what a finished run said: an id of 128 characters, and numbers."""
_BYTES_PER_NODE = 8
"""Packed, beside its id."""


@dataclass
class MoeJob(Gang):
    """See `Gang`; `arrival` is anew of one that has given way. A job begins its next generation once no node
    has ranks of the one before."""

    ALL_TRACK_PROGRESS: ClassVar = False

    _: KW_ONLY
    since_s: float
    """When it got the ranks that it has, or else since when it waits for some."""
    passed: int = 0
    """Number of times that a smaller job has gone before it."""
    had_s: float | None = None
    """For how long it had ranks in generations that are over; None where it had none since it was submitted
    or has given way."""
    is_awaited: bool = False
    """Whether others have given way for it, so that nothing begins before it does."""
    is_profiled: bool = False
    """Whether the present generation has told what its profile stage has counted."""
    is_time_over: bool = False
    """Whether it ends because a service has reached its time."""
    popularity: Popularity | None = field(default=None, metadata=NO_STATE)
    """Popularity of a service that has reported any."""

    def __post_init__(self) -> None:
        self.workload = cast(MoeWorkload, self.job.workload)
        """Its workload."""

    @property
    def until_s(self) -> float | None:
        """When it ends at the latest; None where it has no such time."""
        return self.workload.requests.until_s if isinstance(self.workload, MoeServeWorkload) else None

    @property
    def cluster(self) -> Cluster:
        """The devices of a service."""
        workload = cast(MoeServeWorkload, self.workload)
        return Cluster(workload.ranks, workload.most_experts_per_device)

    @property
    def is_ending(self) -> bool:
        """Whether it will never run again."""
        return super().is_ending or self.is_time_over

    @property
    def leaving_ranks(self) -> dict[str, int]:
        """Ranks by node of nodes that have not reported the end of theirs."""
        return {node: leaving.processes for node, leaving in self.leaving.items()}

    def had_ranks_s(self, time_s: float) -> float:
        """For how long it has had ranks by now, since it was submitted or has given way."""
        return (self.had_s or 0.0) + (time_s - self.since_s if self.members else 0.0)

    @property
    def state_bytes(self) -> int:
        """Most bytes of it in a snapshot, with the turn of its user."""
        # A node may be a member and done, or else is leaving.
        nodes = (*self.members, *self.members, *self.leaving, self.leader)
        names = sum(_BYTES_PER_NODE + len(node) for node in nodes) + len(self.job.user)
        told = 0 if self.popularity is None else self.popularity.state_bytes
        return _BYTES_PER_JOB + names + told + self.ending_bytes

    def describe(self, elapsed_s: float) -> dict[str, Any]:
        return {
            **super().describe(elapsed_s),
            "ranks": self.workload.ranks,
            "since_s": self.since_s,
            "passed": self.passed,
            "had_ranks_s": self.had_s,
            "is_awaited": self.is_awaited,
            "until_s": self.until_s,
            "experts": None if self.popularity is None else self.popularity.describe(),
        }

    def to_state(self) -> list[Any]:
        """Everything that the register has not, of types that msgpack writes."""
        return [state_of(self), None if self.popularity is None else self.popularity.state()]

    @classmethod
    def of_state(cls, state: Sequence[Any], jobs: Mapping[str, Job], rule: DriftRule) -> Self:
        """The job that `state` was taken of."""
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
        """See `GangJob`; a service whose time is over has done its work if it has ever run."""
        if not self.is_time_over or super().is_ending:
            return super().ended(zone)
        if not self.generation:
            return self.refunded(zone, "time_over", {})
        return self.completed(zone, self.leader, self.job.samples_done)
