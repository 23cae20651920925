"""Decisions on one event, in the order in which they are made."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from schemas.base import Outcome
from schemas.installed import check_reason
from schemas.kind import PolicyKind

Effect = Callable[[Outcome], None]


class OutcomeSink(ABC):
    """Collection to which decisions on the present event are added."""

    @abstractmethod
    def add(self, outcome: Outcome) -> None:
        """Add a decision."""

    def extend(self, outcomes: Iterable[Outcome]) -> None:
        """Add some decisions."""
        for outcome in outcomes:
            self.add(outcome)


class Outcomes(OutcomeSink):
    """Decisions on the present event. Each takes effect on the cell's jobs and loans as it is added."""

    def __init__(self) -> None:
        self._added: list[Outcome] = []
        self._effects: tuple[Effect, ...] = ()

    def affect(self, *effects: Effect) -> None:
        """Call these functions with each decision that is added from now on."""
        self._effects = effects

    def add(self, outcome: Outcome) -> None:
        for effect in self._effects:
            effect(outcome)
        self._added.append(outcome)

    def add_without_effect(self, outcome: Outcome) -> None:
        """Add the rejection of a job that the cell does not keep. It has no effect, since a job that the cell
        keeps may have the same id."""
        self._added.append(outcome)

    def drain(self) -> list[Outcome]:
        """Return all decisions, and begin with none."""
        drained, self._added = self._added, []
        return drained


class ZoneOutcomes(OutcomeSink):
    """Decisions on the present event as a zone adds to them: with reasons of its policy or of all policies.

    Raises:
        ValueError: a decision is added with a reason of another policy.
    """

    def __init__(self, outcomes: Outcomes, policy: PolicyKind) -> None:
        self._outcomes = outcomes
        self._policy = policy

    def add(self, outcome: Outcome) -> None:
        check_reason(outcome, self._policy)
        self._outcomes.add(outcome)
