"""The order in which jobs get ranks: users take turns, each with its jobs in the order of their submission.

A job for which others are preempted is the first (see claims.py), then jobs that have lost their ranks. A
job that needs more devices than are idle may be passed by smaller jobs of other users, but only `MOST_PASSED`
times: then no job begins before it, unless waiting for it would be useless.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from streams.cell.states import Stateful
from streams.policies.experts.job import MoeJob

MOST_PASSED = 8
"""Number of times that a job may be passed."""


@dataclass(init=False, eq=False)
class UserTurns(Stateful):
    """Turns of the users of one zone."""

    _given: int
    _turns: dict[str, int]
    """Number of the last turn of each user with live jobs; a new user gets one on joining."""

    def __init__(self) -> None:
        self._given, self._turns = 0, {}

    def join(self, user: str) -> None:
        """Add a user with a job; a new user is the last."""
        if user not in self._turns:
            self.give_turn(user)

    def leave(self, user: str) -> None:
        """Remove a user without jobs."""
        del self._turns[user]

    def queue(
        self, waiting: Iterable[MoeJob], open_devices: int, holds_up: Callable[[MoeJob], bool]
    ) -> "TurnQueue":
        """Return the queue of waiting jobs, for one assignment of devices.

        Args:
            waiting: jobs that can be given ranks, in the order of their submission.
            open_devices: devices that a job could have alone: a job that needs more is left out, and delays
                no other.
            holds_up: whether no job may begin before one that has been passed too often.
        """
        return TurnQueue(self, [job for job in waiting if job.workload.ranks <= open_devices], holds_up)

    def number(self, user: str) -> int:
        """Return the number of a user's last turn; the lowest is next."""
        return self._turns[user]

    def order(self, job: MoeJob) -> tuple[bool, int]:
        """Return the sort key of a user's first job."""
        is_first = job.past_ranks_s is not None or job.passed >= MOST_PASSED
        return (False, job.arrival) if is_first else (True, self._turns[job.job.user])

    def give_turn(self, user: str) -> None:
        """Give a user a turn; the user is now the last."""
        self._given += 1
        self._turns[user] = self._given

    @property
    def numbers(self) -> dict[str, int]:
        """Number of each user's last turn, by user with live jobs."""
        return dict(self._turns)


class TurnQueue:
    """Queue of waiting jobs, see `UserTurns.queue`. `next` takes time in proportion to the users passed."""

    def __init__(
        self, turns: UserTurns, waiting: Iterable[MoeJob], holds_up: Callable[[MoeJob], bool]
    ) -> None:
        self._turns = turns
        self._holds_up = holds_up
        self._claimant: MoeJob | None = None
        self._jobs: dict[str, deque[MoeJob]] = {}
        for job in waiting:
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
        return (False, -1) if job is self._claimant else self._turns.order(job)
