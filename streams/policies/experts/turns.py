"""Which job gets ranks next: users take turns, and the jobs of one come in the order of their submission.

A job for which others give way comes first (`claims`), then those that have lost their ranks. One that needs
more devices than idle may be passed by smaller jobs of other users, but only so often: then nothing begins
before it does, unless that would be in vain.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush

from streams.policies.experts.job import MoeJob

MOST_PASSED = 8
"""So often a job may be passed."""


class Turns:
    """Of the users of one zone."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}
        """By user with live jobs, the number of the turn that was the user's last, or of joining."""
        self._given = 0

    def join(self, user: str) -> None:
        """A user has a job: one who had none comes after all others."""
        if user not in self._turns:
            self.give(user)

    def leave(self, user: str) -> None:
        """The last job of a user is over."""
        del self._turns[user]

    def line(
        self, waiting: Iterable[MoeJob], open_devices: int, holds_up: Callable[[MoeJob], bool]
    ) -> "Line":
        """Those that wait, for as long as devices are given out.

        Args:
            waiting: jobs that can be given ranks, in the order of their submission.
            open_devices: those that a job could have if no other ran: what needs more is left out, and
                delays nobody.
            holds_up: whether nothing begins before a job that has been passed too often.
        """
        return Line(self, [job for job in waiting if job.workload.ranks <= open_devices], holds_up)

    def number(self, user: str) -> int:
        """The lower, the longer ago was the user's last turn."""
        return self._turns[user]

    def order(self, job: MoeJob) -> tuple[bool, int]:
        """By which the first jobs of all users come after each other."""
        is_first = job.had_s is not None or job.passed >= MOST_PASSED
        return (False, job.arrival) if is_first else (True, self._turns[job.job.user])

    def give(self, user: str) -> None:
        """A user has a turn, and comes after all others."""
        self._given += 1
        self._turns[user] = self._given

    @property
    def numbers(self) -> dict[str, int]:
        """Number of each user's last turn, by user with live jobs."""
        return dict(self._turns)

    def state(self) -> list[object]:
        """Of types that msgpack writes."""
        return [self._given, self._turns]

    def restore(self, state: list[object]) -> None:
        """Take a state."""
        self._given, self._turns = state  # type: ignore[assignment]


class Line:
    """See `Turns.line`. A step takes as long as a look at those who are passed."""

    def __init__(self, turns: Turns, waiting: Iterable[MoeJob], holds_up: Callable[[MoeJob], bool]) -> None:
        self._turns = turns
        self._holds_up = holds_up
        self._claims: MoeJob | None = None
        self._jobs: dict[str, deque[MoeJob]] = {}
        for job in waiting:
            self._jobs.setdefault(job.job.user, deque()).append(job)
        self._sort()

    def heads(self) -> Sequence[MoeJob]:
        """The first jobs of all users, in the order of their turns."""
        return [self._jobs[user][0] for user in sorted(self._jobs, key=self._turns.number)]

    def put_first(self, head: MoeJob) -> None:
        """Nothing begins before this one, which is the first of its user."""
        self._claims = head
        self._sort()

    def next(self, idle: int) -> MoeJob | None:
        """The job that begins now; None if none does. It has its turn with that.

        Args:
            idle: devices that a job could have now.
        """
        too_large: list[MoeJob] = []
        begins = None
        while self._first and begins is None:
            _, user = heappop(self._first)
            job = self._jobs[user][0]
            if job.workload.ranks <= idle:
                begins = job
            else:
                too_large.append(job)
                if job is self._claims or (job.passed >= MOST_PASSED and self._holds_up(job)):
                    break
        if begins is not None:
            for passed in too_large:
                passed.passed += 1
            begins.passed = 0
            self._turns.give(begins.job.user)
            self._jobs[begins.job.user].popleft()
            too_large += list(self._jobs[begins.job.user])[:1]
        for job in too_large:
            heappush(self._first, (self._order(job), job.job.user))
        return begins

    def _sort(self) -> None:
        first = (jobs[0] for jobs in self._jobs.values())
        self._first = [(self._order(job), job.job.user) for job in first]
        heapify(self._first)

    def _order(self, job: MoeJob) -> tuple[bool, int]:
        return (False, -1) if job is self._claims else self._turns.order(job)
