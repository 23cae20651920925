"""Turns of the users of a zone."""

from collections.abc import Collection
from dataclasses import dataclass

from streams.cell.states import Stateful

_TURN_BYTES = 16


@dataclass(init=False, eq=False)
class UserTurns(Stateful):
    """Numbers of the users' last turns in one zone; the user with the lowest is next."""

    _given: int
    _turns: dict[str, int]

    def __init__(self) -> None:
        self._given, self._turns = 0, {}

    def join(self, user: str) -> None:
        """Add a user with a job; a new user is the last."""
        if user not in self._turns:
            self.give_turn(user)

    def leave(self, user: str) -> None:
        """Remove a user without jobs."""
        del self._turns[user]

    def keep(self, users: Collection[str]) -> None:
        """Remove all users except some."""
        self._turns = {user: turn for user, turn in self._turns.items() if user in users}

    def number(self, user: str) -> int:
        """Return the number of a user's last turn; 0 before the first."""
        return self._turns.get(user, 0)

    def give_turn(self, user: str) -> None:
        """Give a user a turn; the user is now the last."""
        self._given += 1
        self._turns[user] = self._given

    @property
    def numbers(self) -> dict[str, int]:
        """Number of each user's last turn."""
        return dict(self._turns)

    @property
    def state_bytes(self) -> int:
        """Most bytes of the turns in a snapshot."""
        return sum(len(user.encode()) + _TURN_BYTES for user in self._turns)
