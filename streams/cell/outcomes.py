"""Decisions on one event, in the order in which they are made."""

from collections.abc import Callable, Iterable

from schemas.base import Outcome
from schemas.installed import check_reason
from schemas.kind import PolicyKind

Effect = Callable[[Outcome], None]


class Outcomes:
    """Decisions on the present event. Each takes effect on the cell's jobs and loans as it is added."""

    def __init__(self) -> None:
        self._added: list[Outcome] = []
        self._effects: tuple[Effect, ...] = ()

    def affect(self, *effects: Effect) -> None:
        """Call these functions with each decision that is added from now on."""
        self._effects = effects

    def add(self, outcome: Outcome) -> None:
        """Add a decision."""
        for effect in self._effects:
            effect(outcome)
        self._added.append(outcome)

    def extend(self, outcomes: Iterable[Outcome]) -> None:
        """Add some decisions."""
        for outcome in outcomes:
            self.add(outcome)

    def add_without_effect(self, outcome: Outcome) -> None:
        """Add the rejection of a job that the cell does not keep. It has no effect, since a job that the cell
        keeps may have the same id."""
        self._added.append(outcome)

    def insert(self, index: int, outcome: Outcome) -> None:
        """Add a decision before those that were added since there were `index`, such as a summary of them."""
        self.add(outcome)
        self._added.insert(index, self._added.pop())

    def __len__(self) -> int:
        return len(self._added)

    def since(self, index: int) -> list[Outcome]:
        """Return the decisions that were added since there were `index`."""
        return self._added[index:]

    def drain(self) -> list[Outcome]:
        """Return all decisions, and begin with none."""
        drained, self._added = self._added, []
        return drained


class ZoneOutcomes(Outcomes):
    """Decisions on the present event as a zone adds to them: with reasons of its policy or of all policies.

    Raises:
        ValueError: a decision is added with a reason of another policy.
    """

    def __init__(self, outcomes: Outcomes, policy: PolicyKind) -> None:
        self._all = outcomes
        self._policy = policy

    def add(self, outcome: Outcome) -> None:
        check_reason(outcome, self._policy)
        self._all.add(outcome)

    def insert(self, index: int, outcome: Outcome) -> None:
        check_reason(outcome, self._policy)
        self._all.insert(index, outcome)

    def __len__(self) -> int:
        return len(self._all)

    def since(self, index: int) -> list[Outcome]:
        return self._all.since(index)
