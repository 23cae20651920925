"""The step times of a problem: tables that kinds of jobs share, within the room of a problem."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.merging.problems import MAX_STEP_TIMES, StepTime


@dataclass
class KindSteps:
    """Step times of one kind of jobs."""

    steps: tuple[StepTime, ...]
    """Step times, by ascending number of GPUs."""
    waited_s: float = 0.0
    """Longest total time without GPUs of its jobs."""
    gpus_now: set[int] = field(default_factory=set)
    """Numbers of GPUs that its jobs have."""

    def note(self, waited_s: float, gpus: int) -> None:
        """Count a job of the kind."""
        self.waited_s = max(self.waited_s, waited_s)
        if gpus:
            self.gpus_now.add(gpus)

    @property
    def restricted(self) -> tuple[StepTime, ...]:
        """Step times with the fewest GPUs, and with those of its jobs: enough to continue, and to begin."""
        return tuple(step for step in self.steps if step is self.steps[0] or step.gpus in self.gpus_now)


class StepTables(NamedTuple):
    """Step times of all kinds of a problem."""

    tables: tuple[tuple[StepTime, ...], ...]
    """Tables, of which no two are equal."""
    of_kinds: tuple[int, ...]
    """Index of each kind's table."""
    restricted: int
    """Number of kinds with a restricted table."""


def step_tables(kinds: Sequence[KindSteps], room: int = MAX_STEP_TIMES) -> StepTables:
    """Return the tables of kinds, each kept once.

    If there are too many step times, the kinds whose jobs have waited longest get full tables first; the
    others get `KindSteps.restricted`.

    Args:
        room: most step times. It must suffice for the restricted tables: one step time to begin with and one
            for its present GPUs per job.
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


def _within(kinds: Sequence[KindSteps], room: int) -> list[tuple[StepTime, ...]]:
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
