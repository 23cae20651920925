"""Turns of users, which choose the next job to be profiled."""

from streams.policies.merging.tasks import Tasks

_TURN_BYTES = 16


class ProfileTurns:
    """Turns of the users with live jobs in one zone."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._turns: dict[str, int] = {}
        """Number of the last turn by user."""

    def of(self, user: str) -> int:
        """Return the number of a user's last turn; the lowest is next."""
        return self._turns.get(user, 0)

    def give_turn(self, user: str) -> None:
        """Give a user a turn; the user is now the last."""
        live = {job.job.user for job in self._tasks.jobs.values()}
        turns = {other: turn for other, turn in self._turns.items() if other in live}
        self._set({**turns, user: 1 + max(turns.values(), default=0)})

    def forget(self) -> None:
        """Forget all turns, since no job is left."""
        self._set({})

    def state(self) -> dict[str, int]:
        """Return the number of each user's last turn; a type that msgpack and JSON write."""
        return dict(self._turns)

    def restore(self, state: dict[str, int]) -> None:
        """Set the state."""
        self._set(state)

    def _set(self, turns: dict[str, int]) -> None:
        before = sum(map(_turn_bytes, self._turns))
        self._turns = dict(turns)
        self._tasks.room.add(sum(map(_turn_bytes, self._turns)) - before)


def _turn_bytes(user: str) -> int:
    """Return the bytes of a user's turn in a snapshot."""
    return len(user.encode()) + _TURN_BYTES
