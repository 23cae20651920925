"""Which jobs give way, so that no user holds the devices of others for ever.

A job has a claim once it has waited for `patience_s` for each user from whom it takes ranks. If its user has
none, it takes them from anyone, and otherwise from users who have as many as its own would then have: users
with equal parts take nothing from each other, and one who has nothing comes to its turn however many ranks
the job needs. Jobs give way once they have had their ranks for `patience_s`. Claims come in the turns of the
users, one at a time, and nothing begins before the first, since it would have to be waited for.

So while nodes stay as they are, the first job of a user without ranks begins within 2 n (`patience_s` + c) if
it fits on the open nodes, where n users have jobs, and c is the longest that released ranks take to go, with
two ticks of the clock. After n `patience_s` it has a claim, whoever has the devices. From then on each other
user comes before it once at most, since that is the user's turn, and each claim waits for `patience_s` at
most until its jobs may give way, and for c until their ranks are gone.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from streams.policies.experts.job import MoeJob
from streams.policies.experts.turns import Turns
from streams.policies.gpus import Gpus


@dataclass(frozen=True)
class Claim:
    """The job that begins before all others."""

    job: MoeJob
    gives_way: Sequence[MoeJob] = ()
    """Jobs whose ranks it takes now. None where enough devices idle or are on their way, or where jobs that
    are to give way have not had their ranks for long enough."""


class Holdings:
    """What the users of a zone have at one moment, and who would give way for whom."""

    def __init__(
        self, jobs: Iterable[MoeJob], gpus: Gpus, turns: Turns, time_s: float, patience_s: float
    ) -> None:
        self._time_s, self._patience_s = time_s, patience_s
        self._ranks: Counter[str] = Counter()
        """By user; only users with some."""
        self._jobs: dict[str, list[MoeJob]] = {}
        """Those with ranks by user, from the least devices to the most."""
        self._devices: dict[str, int] = {}
        """That would idle if a job with ranks gave way: those of open nodes."""
        self._coming = gpus.idle()
        """Devices that idle, or will as soon as nodes say that ranks are gone."""
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
        """Users with most ranks first, and of these the one whose turn was the longest ago."""

    def first_claim(self, heads: Sequence[MoeJob]) -> Claim | None:
        """The claim that comes first; None if there is none.

        Args:
            heads: the first waiting jobs of all users, in the order of the users' turns.
        """
        for job in heads:
            if job.is_awaited and job.workload.ranks <= self._coming:
                return Claim(job)
        for job in heads:
            users = self._patiences(job)
            if not users:
                continue
            ready = self._giving_way(job, users, only_ready=True)
            if ready is not None:
                return Claim(job, ready)
            if self._giving_way(job, users, only_ready=False) is not None:
                return Claim(job)
        return None

    def holds_up(self, job: MoeJob) -> bool:
        """Whether nothing may begin before a job that has been passed too often: the devices that it needs
        are of jobs that would give way, or of some that have begun only now and may be over soon."""
        others = (
            self._devices[other.job_id]
            for user in self._order
            for other in self._jobs[user]
            if user != job.job.user and (self._gives(user, job) or not self._is_ready(other))
        )
        return self._coming + sum(others) >= job.workload.ranks

    def next_s(self, heads: Iterable[MoeJob]) -> float:
        """Before then there is no other first claim, unless something else happens than time passing."""
        waits = (job.since_s + (self._patiences(job) + 1) * self._patience_s for job in heads)
        running = (job for jobs in self._jobs.values() for job in jobs if not self._is_ready(job))
        ready = (job.since_s + self._patience_s - (job.had_s or 0.0) for job in running)
        return min((*waits, *ready), default=math.inf)

    def _patiences(self, job: MoeJob) -> int:
        """How often it has waited for `patience_s`."""
        return int((self._time_s - job.since_s) // self._patience_s)

    def _is_ready(self, job: MoeJob) -> bool:
        return job.had_ranks_s(self._time_s) >= self._patience_s

    def _gives(self, user: str, job: MoeJob) -> bool:
        """Whether jobs of this user would give way for a job of another."""
        has = self._ranks[job.job.user]
        return not has or self._ranks[user] >= has + job.workload.ranks

    def _giving_way(self, job: MoeJob, most_users: int, only_ready: bool) -> list[MoeJob] | None:
        """The jobs that give way, of so many users at most; None if these do not suffice."""
        short = job.workload.ranks - self._coming
        chosen: list[MoeJob] = []
        for user in self._order:
            if short > 0 and user != job.job.user and self._gives(user, job):
                of_user = self._fewest(user, short, only_ready)
                short -= sum(self._devices[other.job_id] for other in of_user)
                chosen += of_user
        for other in list(chosen):
            # One that was chosen early is not needed beside a larger one that was chosen later.
            if self._devices[other.job_id] <= -short:
                short += self._devices[other.job_id]
                chosen.remove(other)
        # Who has ranks already has a claim on those of others alone.
        is_owed = bool(chosen) or not self._ranks[job.job.user]
        suffices = short <= 0 and len({other.job.user for other in chosen}) <= most_users
        return chosen if is_owed and suffices else None

    def _fewest(self, user: str, short: int, only_ready: bool) -> Sequence[MoeJob]:
        """The jobs of a user with the fewest devices that suffice, and of such as few as possible; all of its
        jobs where these do not suffice."""
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
