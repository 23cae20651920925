"""The step times in a question: tables that kinds of jobs share, within what a question has room for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.merging.problems import MAX_STEP_TIMES, StepTime


@dataclass
class Wanted:
    """What one kind of jobs would have in a question."""

    steps: tuple[StepTime, ...]
    """With each number of GPUs that its jobs may have, ascending."""
    waited_s: float = 0.0
    """The longest that a job of it has waited in all."""
    gpus_now: set[int] = field(default_factory=set)
    """That its jobs have."""

    def note(self, waited_s: float, gpus: int) -> None:
        """It has such a job."""
        self.waited_s = max(self.waited_s, waited_s)
        if gpus:
            self.gpus_now.add(gpus)

    @property
    def restricted(self) -> tuple[StepTime, ...]:
        """The fewest GPUs, and what its jobs have now: enough to go on, and to get a turn."""
        return tuple(step for step in self.steps if step is self.steps[0] or step.gpus in self.gpus_now)


class StepTables(NamedTuple):
    """As they are asked about."""

    tables: tuple[tuple[StepTime, ...], ...]
    """No two are equal."""
    of_kinds: tuple[int, ...]
    """The table of each kind, by its index."""
    restricted: int
    """How many kinds have less than they would."""


def step_tables(kinds: Sequence[Wanted], room: int = MAX_STEP_TIMES) -> StepTables:
    """The tables of some kinds, each kept once.

    Where there are too many step times, kinds whose jobs have waited longest have all of theirs first; the
    others have what `Wanted.restricted` says.

    Args:
        room: for so many step times. It must be enough for the restricted tables, as it is for one that each
            job may start with and one that it has now.
    """
    chosen = [kind.steps for kind in kinds]
    if sum(map(len, set(chosen))) > room:
        chosen = _within(kinds, room)
    places = {table: place for place, table in enumerate(dict.fromkeys(chosen))}
    return StepTables(
        tuple(places),
        tuple(places[table] for table in chosen),
        sum(len(table) < len(kind.steps) for table, kind in zip(chosen, kinds, strict=True)),
    )


def _within(kinds: Sequence[Wanted], room: int) -> list[tuple[StepTime, ...]]:
    chosen = [kind.restricted for kind in kinds]
    left = room - sum(map(len, chosen))
    held: set[tuple[StepTime, ...]] = set()
    for place in sorted(range(len(kinds)), key=lambda place: -kinds[place].waited_s):
        steps = kinds[place].steps
        cost = (0 if steps in held else len(steps)) - len(chosen[place])
        if cost <= left:
            left -= cost
            held.add(steps)
            chosen[place] = steps
    return chosen
