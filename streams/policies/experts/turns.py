"""The order in which jobs get ranks: users take turns, each with its jobs in the order of their submission.

A job for which others are preempted is the first (see claims.py), then jobs that have lost their ranks. A job
that needs more devices than are idle may be passed by smaller jobs of other users, but only `MOST_PASSED`
times. Then no other job begins before it, unless waiting for it would be useless.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush

from streams.policies.experts.moe_job import MoeJob
from streams.policies.gang.turns import UserTurns

MOST_PASSED = 8
"""Number of times that a job may be passed."""


class TurnQueue:
    """Queue of waiting jobs, for one assignment of devices. `next` takes time in proportion to the users
    passed."""

    def __init__(
        self,
        turns: UserTurns,
        waiting: Iterable[MoeJob],
        open_devices: int,
        holds_up: Callable[[MoeJob], bool],
    ) -> None:
        """Sort the jobs.

        Args:
            turns: the turns of their users.
            waiting: jobs that can be given ranks, in the order of their submission.
            open_devices: devices that a job could have alone: a job that needs more is left out, and delays
                no other.
            holds_up: whether no job may begin before one that has been passed too often.
        """
        self._turns = turns
        self._holds_up = holds_up
        self._claimant: MoeJob | None = None
        self._jobs: dict[str, deque[MoeJob]] = {}
        for job in (job for job in waiting if job.workload.ranks <= open_devices):
            self._jobs.setdefault(job.job.user, deque()).append(job)
        self._sort()

    def heads(self) -> Sequence[MoeJob]:
        """Return the first jobs of all users, in the order of their turns."""
        return [self._jobs[user][0] for user in sorted(self._jobs, key=self._turns.number)]

    def put_first(self, head: MoeJob) -> None:
        """Put the first job of a user before all others: no job begins before it."""
        self._claimant = head
        self._sort()

    def next(self, idle: int) -> MoeJob | None:
        """Remove the job that begins now, give its user a turn, and return the job; None if no job begins.

        Args:
            idle: number of idle devices.
        """
        too_large: list[MoeJob] = []
        chosen = None
        while self._first and chosen is None:
            _, user = heappop(self._first)
            job = self._jobs[user][0]
            if job.workload.ranks <= idle:
                chosen = job
            else:
                too_large.append(job)
                if job is self._claimant or (job.passed >= MOST_PASSED and self._holds_up(job)):
                    break
        if chosen is not None:
            for passed in too_large:
                passed.passed += 1
            chosen.passed = 0
            self._turns.give_turn(chosen.job.user)
            self._jobs[chosen.job.user].popleft()
            too_large += list(self._jobs[chosen.job.user])[:1]
        for job in too_large:
            heappush(self._first, (self._order(job), job.job.user))
        return chosen

    def _sort(self) -> None:
        first = (jobs[0] for jobs in self._jobs.values())
        self._first = [(self._order(job), job.job.user) for job in first]
        heapify(self._first)

    def _order(self, job: MoeJob) -> tuple[bool, int]:
        """Return the sort key of a user's first job."""
        if job is self._claimant:
            return False, -1
        if job.past_ranks_s is not None or job.passed >= MOST_PASSED:
            return False, job.arrival
        return True, self._turns.number(job.job.user)
