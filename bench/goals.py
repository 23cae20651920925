"""Performance gates as data: what a figure must reach, where it is expected, and on how much it must rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.figures import Measurement

GATES = Path(__file__).parent / "gates"


@dataclass(frozen=True)
class Goal:
    """What a gate file asks of a figure."""

    unit: str
    at_most: float | None = None
    at_least: float | None = None
    above: float | None = None
    """As `at_least`, but reaching it is not enough."""
    margin: float = 0.0
    """Share by which a check lets the figure miss the goal: machines differ."""
    expected: tuple[float, float] | None = None
    """Where the full form is expected on any healthy machine, both ends included. Beyond it, on the good side
    too, something else was measured than is thought."""
    runs: int = 1
    """Sample runs that the full form must rest on at least."""
    quick: bool = True
    """Whether the figure means something in the quick form too; if not, that form is not held to the goal."""

    def met(self, value: float, margin: float = 0.0) -> bool:
        """Whether a value reaches the goal, give or take a share of it."""
        if self.at_most is not None and value > self.at_most * (1 + margin):
            return False
        if self.above is not None and value <= self.above * (1 - margin):
            return False
        return self.at_least is None or value >= self.at_least * (1 - margin)

    def faults(self, measured: Measurement, quick: bool) -> list[str]:
        """Why a check fails, one line each."""
        name, value = measured.name, measured.value
        found = []
        if (self.quick or not quick) and not self.met(value, self.margin):
            found.append(f"{name} is {value:g} {self.unit}, wanted {self}")
        if not quick and self.expected is not None and not self.expected[0] <= value <= self.expected[1]:
            low, high = self.expected
            found.append(f"{name} is {value:g} {self.unit}, expected from {low:g} to {high:g}: look why")
        if not quick and measured.runs < self.runs:
            found.append(f"{name} rests on {measured.runs} sample runs, wanted {self.runs}")
        return found

    def __str__(self) -> str:
        bounds = (("<=", self.at_most), (">=", self.at_least), (">", self.above))
        return " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None) or "none"


def goals(bench: str) -> dict[str, Goal]:
    """The goals of a benchmark, by figure."""
    document = yaml.safe_load((GATES / f"{bench}.yaml").read_text())
    return {name: _goal(fields) for name, fields in document["figures"].items()}


def missed(bench: str, measurements: Sequence[Measurement], quick: bool) -> list[str]:
    """Every figure that does not pass its gate, and why, one line each."""
    wanted = goals(bench)
    return [fault for measured in measurements for fault in wanted[measured.name].faults(measured, quick)]


def _goal(fields: dict[str, object]) -> Goal:
    expected = fields.pop("expected", None)
    return Goal(**fields, expected=None if expected is None else tuple(expected))
