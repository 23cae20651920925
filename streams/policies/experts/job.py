"""A job of an experts zone: its ranks, how far it is, and how it ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast

from schemas.experts.commands import MoeWorkload
from schemas.experts.workload import MoeServeWorkload
from schemas.facts import Facts, facts_bytes
from schemas.fleet import RunFinished
from solvers.experts.drift import DriftRule
from solvers.experts.placement import Cluster
from streams.cell.jobs import Job
from streams.policies.experts.popularity import Popularity

_BYTES_PER_JOB = 384
"""Packed, beside names, an error, and what a finished run said: an id of 128 characters, and numbers."""
_BYTES_PER_NODE = 8
"""Packed, beside its id."""


@dataclass
class MoeJob:
    """State of a job in its zone besides the register's part.

    All ranks of a generation begin and end together: where one is lost, so are the others. A job begins its
    next generation once no node has ranks of the one before.
    """

    job: Job
    arrival: int
    """Rank by submission; one that has given way counts as submitted then."""
    since_s: float
    """When it got the ranks that it has, or else since when it waits for some."""
    generation: int = 0
    """Generation of its newest ranks; 0 before its first."""
    members: dict[str, int] = field(default_factory=dict)
    """Ranks by node, in the order of the ranks. Empty while it waits."""
    done: dict[str, None] = field(default_factory=dict)
    """Members that have ended because all is done; the leader is still to say so."""
    clearing: dict[str, int] = field(default_factory=dict)
    """Ranks of the present generation by node, of nodes that have not said that they are gone. Empty while
    there are members."""
    leader: str = ""
    """The first member of the present generation, which speaks for all; of a job that waits, of its last."""
    failures: int = 0
    """Runs that failed since the job was last further than ever before."""
    furthest_samples: int = 0
    """That it has ever done, lost ones among them."""
    passed: int = 0
    """Number of times that a smaller job has gone before it."""
    had_s: float | None = None
    """For how long it had ranks in generations that are over; None where it had none since it was submitted
    or has given way."""
    is_awaited: bool = False
    """Whether others have given way for it, so that nothing begins before it does."""
    is_profiled: bool = False
    """Whether the present generation has told what its profile stage has counted."""
    popularity: Popularity | None = None
    """Popularity of a service that has reported any."""
    finished: RunFinished | None = None
    """Its work is done; it is over once no node has a rank."""
    given_up: Facts | None = None
    """Why it ends without: the run's error, or an empty text where its user withdraws it."""
    is_time_over: bool = False
    """Whether it ends because a service has reached its time."""
    heard_s: float = 0.0
    """Time of the last order or report of its present generation, by the zone's `OrderClock`."""
    quiet_s: float = 0.0
    """For how long it was then expected to say nothing."""
    retry_s: float = 0.0
    """Until then, by the same clock, it gets no ranks: a node did not begin its last run."""

    def __post_init__(self) -> None:
        self.workload = cast(MoeWorkload, self.job.workload)
        """Its workload."""

    @property
    def job_id(self) -> str:
        """Its name."""
        return self.job.job_id

    @property
    def run_id(self) -> str:
        """Id of the present generation's run, the same on all of its nodes."""
        return f"{self.generation}/{self.job.job_id}"

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
        return self.finished is not None or self.given_up is not None or self.is_time_over

    @property
    def waits(self) -> bool:
        """Whether it can be given ranks: those that it had are gone."""
        return not (self.members or self.clearing or self.is_ending)

    @property
    def working(self) -> list[str]:
        """Its members that have not said that their ranks are gone."""
        return [node for node in self.members if node not in self.done]

    @property
    def remaining_samples(self) -> int:
        """That are left of its work; 0 where only the time ends it."""
        total = self.workload.total_samples
        return 0 if total is None else max(total - self.job.samples_done, 0)

    def had_ranks_s(self, time_s: float) -> float:
        """For how long it has had ranks by now, since it was submitted or has given way."""
        return (self.had_s or 0.0) + (time_s - self.since_s if self.members else 0.0)

    def progress(self, samples_done: int) -> None:
        """Set its progress; what a report has beyond all of its work does not count."""
        total_samples = self.workload.total_samples
        if total_samples is not None:
            samples_done = min(samples_done, total_samples)
        if samples_done > self.furthest_samples:
            self.failures, self.furthest_samples = 0, samples_done
        self.job.samples_done = samples_done

    def hear(self, heard_s: float, quiet_s: float = 0.0) -> None:
        """Note an order or report of its present generation, which may then be silent for a while."""
        self.heard_s, self.quiet_s = heard_s, quiet_s

    @property
    def state_bytes(self) -> int:
        """Most bytes of it in a snapshot, with the turn of its user."""
        # A node may be a member and done, or else is clearing.
        nodes = (*self.members, *self.members, *self.clearing, self.leader)
        names = sum(_BYTES_PER_NODE + len(node) for node in nodes) + len(self.job.user)
        told = 0 if self.popularity is None else self.popularity.state_bytes
        finished = "" if self.finished is None else self.finished.model_dump_json()
        failure = facts_bytes(self.given_up or {})
        return _BYTES_PER_JOB + names + told + failure + len(finished.encode())

    def to_state(self) -> list[Any]:
        """Everything that the register has not, of types that msgpack writes."""
        return [
            self.job.job_id,
            self.arrival,
            self.since_s,
            self.generation,
            self.members,
            list(self.done),
            self.clearing,
            self.leader,
            self.failures,
            self.furthest_samples,
            self.passed,
            self.had_s,
            self.is_awaited,
            self.is_profiled,
            None if self.popularity is None else self.popularity.state(),
            None if self.finished is None else self.finished.model_dump_json(),
            self.given_up,
            self.is_time_over,
            self.heard_s,
            self.quiet_s,
            self.retry_s,
        ]

    @classmethod
    def from_state(cls, state: Sequence[Any], jobs: Mapping[str, Job], rule: DriftRule) -> Self:
        """The job that `state` was taken of."""
        job_id, arrival, since_s, generation, members, done, clearing, leader, *rest = state
        failures, furthest_samples, passed, had_s, is_awaited, is_profiled, *rest = rest
        popularity, finished, given_up, is_time_over, heard_s, quiet_s, retry_s = rest
        job = cls(
            jobs[job_id],
            arrival,
            since_s,
            generation,
            members,
            dict.fromkeys(done),
            clearing,
            leader,
            failures,
            furthest_samples,
            passed,
            had_s,
            is_awaited,
            is_profiled,
            finished=None if finished is None else RunFinished.model_validate_json(finished),
            given_up=given_up,
            is_time_over=is_time_over,
            heard_s=heard_s,
            quiet_s=quiet_s,
            retry_s=retry_s,
        )
        if popularity is not None:
            job.popularity = Popularity.from_state(popularity, rule, job.cluster)
        return job
