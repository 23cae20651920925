"""Which job gets ranks next: users take turns, and the jobs of one come in the order of their submission.

A job that has lost its ranks to a node comes before those that never had any. One that needs more devices
than idle may be passed by smaller jobs of other users, but only so often: then nothing begins before it does.
So no job waits for ever, as long as the jobs before it end.
"""

from collections.abc import Iterable

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
            self._give(user)

    def leave(self, user: str) -> None:
        """The last job of a user is over."""
        del self._turns[user]

    def next(self, waiting: Iterable[MoeJob], idle: int, open_devices: int) -> MoeJob | None:
        """The job that begins now; None if none does. It has its turn with that.

        Args:
            waiting: jobs that can be given ranks, in the order of their submission.
            idle: devices that a job could have now.
            open_devices: those that it could have if no other job ran: what needs more is left out, and
                delays nobody.
        """
        first: dict[str, MoeJob] = {}
        for job in waiting:
            if job.workload.ranks <= open_devices:
                first.setdefault(job.job.user, job)
        too_large: list[MoeJob] = []
        for job in sorted(first.values(), key=self._order):
            if job.workload.ranks <= idle:
                for passed in too_large:
                    passed.passed += 1
                self._give(job.job.user)
                job.passed = 0
                return job
            if job.passed >= MOST_PASSED:
                return None
            too_large.append(job)
        return None

    def state(self) -> list[object]:
        """Of types that msgpack writes."""
        return [self._given, self._turns]

    def restore(self, state: list[object]) -> None:
        """Take a state."""
        self._given, self._turns = state  # type: ignore[assignment]

    def _order(self, job: MoeJob) -> tuple[bool, int]:
        is_first = job.generation > 0 or job.passed >= MOST_PASSED
        return (False, job.arrival) if is_first else (True, self._turns[job.job.user])

    def _give(self, user: str) -> None:
        self._given += 1
        self._turns[user] = self._given
