"""Claims of waiting jobs on the ranks of others, so that no user holds devices forever.

A job has a claim once it has waited for `patience_s` per user whose jobs it preempts. If its user has no
ranks, it may preempt the jobs of any user; otherwise, only jobs of users who have at least the number of
ranks that its own user would then have. So users with equal shares do not preempt each other, and a user
without ranks gets a turn for any number of ranks. Jobs may be preempted once they have had their ranks for
`patience_s`. Claims are served in the turns of the users, one at a time, and no job begins before the first
claim, since the claim would have to wait for it.

Let n be the number of users with jobs, and c the longest time in which released ranks end, plus two ticks of
the clock. While nodes stay unchanged, the first job of a user without ranks then begins within 2 n
(`patience_s` + c), if it fits on the open nodes. After n `patience_s` it has a claim, whichever users have
the devices. From then on each other user precedes it at most once, since that is the user's turn. Each claim
waits for at most `patience_s` until its jobs may be preempted, and for c until their ranks have ended.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from streams.policies.experts.moe_job import MoeJob
from streams.policies.gang.turns import UserTurns
from streams.policies.gpus import Gpus


@dataclass(frozen=True)
class RankClaim:
    """A job that begins before all others."""

    job: MoeJob
    preempted: Sequence[MoeJob] = ()
    """Jobs to be preempted now. Empty if enough devices are idle or being released, or if the jobs to be
    preempted have not had their ranks for long enough."""


class Holdings:
    """Ranks and devices of the users of a zone at one time, and the jobs that may be preempted."""

    def __init__(
        self, jobs: Iterable[MoeJob], gpus: Gpus, turns: UserTurns, time_s: float, patience_s: float
    ) -> None:
        self._time_s, self._patience_s = time_s, patience_s
        self._ranks: Counter[str] = Counter()
        """Ranks by user; only users with some."""
        self._jobs: dict[str, list[MoeJob]] = {}
        """Jobs with ranks by user, by ascending number of devices."""
        self._devices: dict[str, int] = {}
        """Devices of open nodes by job: those that its preemption frees."""
        self._coming = gpus.idle()
        """Devices that are idle, or will be once nodes report the end of ranks."""
        for job in jobs:
            if job.members:
                self._ranks[job.job.user] += job.workload.ranks
                self._jobs.setdefault(job.job.user, []).append(job)
                self._devices[job.job_id] = gpus.held_in_open(job.members)
            elif job.leaving:
                self._coming += gpus.held_in_open(job.leaving_ranks)
        for running in self._jobs.values():
            running.sort(key=lambda job: (self._devices[job.job_id], job.since_s, job.arrival))
        self._order = sorted(self._jobs, key=lambda user: (-self._ranks[user], turns.number(user)))
        """Users by descending number of ranks, then by ascending turn."""

    def first_claim(self, heads: Sequence[MoeJob]) -> RankClaim | None:
        """Return the first claim; None without one.

        Args:
            heads: the first waiting jobs of all users, in the order of the users' turns.
        """
        for job in heads:
            if job.is_awaited and job.workload.ranks <= self._coming:
                return RankClaim(job)
        for job in heads:
            users = self._waits(job)
            if not users:
                continue
            ready = self._preempted_for(job, users, only_ready=True)
            if ready is not None:
                return RankClaim(job, ready)
            if self._preempted_for(job, users, only_ready=False) is not None:
                return RankClaim(job)
        return None

    def holds_up(self, job: MoeJob) -> bool:
        """Return whether no other job may begin before a job that has been passed too often. Its devices are
        held by jobs that may be preempted, or by jobs that have just begun and may be over soon."""
        others = (
            self._devices[other.job_id]
            for user in self._order
            for other in self._jobs[user]
            if user != job.job.user and (self._gives(user, job) or not self._is_ready(other))
        )
        return self._coming + sum(others) >= job.workload.ranks

    def next_s(self, heads: Iterable[MoeJob]) -> float:
        """Return the earliest time at which the first claim changes without another event."""
        waits = (job.since_s + (self._waits(job) + 1) * self._patience_s for job in heads)
        running = (job for jobs in self._jobs.values() for job in jobs if not self._is_ready(job))
        ready = (job.since_s + self._patience_s - (job.past_ranks_s or 0.0) for job in running)
        return min((*waits, *ready), default=math.inf)

    def _waits(self, job: MoeJob) -> int:
        """Return how many times `patience_s` a job has waited."""
        return int((self._time_s - job.since_s) // self._patience_s)

    def _is_ready(self, job: MoeJob) -> bool:
        return job.had_ranks_s(self._time_s) >= self._patience_s

    def _gives(self, user: str, job: MoeJob) -> bool:
        """Return whether the jobs of a user may be preempted for a job of another."""
        has = self._ranks[job.job.user]
        return not has or self._ranks[user] >= has + job.workload.ranks

    def _preempted_for(self, job: MoeJob, most_users: int, only_ready: bool) -> list[MoeJob] | None:
        """Return the jobs to preempt for a job, of at most `most_users` users; None if they do not
        suffice."""
        short = job.workload.ranks - self._coming
        chosen: list[MoeJob] = []
        for user in self._order:
            if short > 0 and user != job.job.user and self._gives(user, job):
                of_user = self._fewest(user, short, only_ready)
                short -= sum(self._devices[other.job_id] for other in of_user)
                chosen += of_user
        for other in list(chosen):
            # A job that was chosen early may be needless because of a larger one that was chosen later.
            if self._devices[other.job_id] <= -short:
                short += self._devices[other.job_id]
                chosen.remove(other)
        # A user with ranks has a claim only on the ranks of others.
        is_owed = bool(chosen) or not self._ranks[job.job.user]
        suffices = short <= 0 and len({other.job.user for other in chosen}) <= most_users
        return chosen if is_owed and suffices else None

    def _fewest(self, user: str, short: int, only_ready: bool) -> Sequence[MoeJob]:
        """Return the jobs of a user with the fewest devices that suffice, and the fewest such jobs; all of
        its jobs if they do not suffice."""
        jobs = [job for job in self._jobs[user] if not only_ready or self._is_ready(job)]
        if sum(self._devices[job.job_id] for job in jobs) <= short:
            return jobs
        by_devices: dict[int, tuple[MoeJob, ...]] = {0: ()}
        for job in jobs:
            for devices, chosen in list(by_devices.items()):
                more = devices + self._devices[job.job_id]
                if devices < short and (more not in by_devices or len(by_devices[more]) > len(chosen) + 1):
                    by_devices[more] = (*chosen, job)
        return by_devices[min(devices for devices in by_devices if devices >= short)]
