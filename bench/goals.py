"""Performance gates as data: a figure's goal, its expected range, and its least number of sample runs."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from bench.figures import Measurement

GATES = Path(__file__).parent / "gates"


@dataclass(frozen=True)
class Plausibility:
    """Conditions for a plausible figure, whether or not it reaches a goal."""

    expected: tuple[float, float] | None = None
    """Range on any healthy machine, both ends included. A value beyond it, even on the good side, shows that
    something else was measured than intended."""
    runs: int = 1
    """Least number of sample runs."""

    def faults(self, measured: Measurement, unit: str) -> list[str]:
        """Return the reasons why a figure is implausible, one line each."""
        name, value = measured.name, measured.value
        found = []
        if self.expected is not None and not self.expected[0] <= value <= self.expected[1]:
            low, high = self.expected
            found.append(f"{name} is {value:g} {unit}: implausible, expected {low:g} to {high:g}")
        if measured.runs < self.runs:
            found.append(f"{name} rests on {measured.runs} sample runs, needs {self.runs}")
        return found


@dataclass(frozen=True)
class Goal:
    """Goal of a figure in a gate file."""

    unit: str
    part: str
    """Part of the benchmark that measures it."""
    at_most: float | None = None
    at_least: float | None = None
    above: float | None = None
    """Exclusive lower bound."""
    margin: float = 0.0
    """Tolerated share of a miss in a check: machines differ."""
    full: Plausibility = Plausibility()
    """Conditions for the figure of the full form, in addition to the goal."""
    quick: Plausibility | None = None
    """Conditions that replace the goal in the quick form, for figures that need large sizes. If None, the
    goal applies to the quick form too."""

    def met(self, value: float, margin: float = 0.0) -> bool:
        """Return whether a value reaches the goal within a margin, a share of it; a value that is not finite
        never does."""
        if not math.isfinite(value):
            return False
        if self.at_most is not None and value > self.at_most + margin * abs(self.at_most):
            return False
        if self.above is not None and value <= self.above - margin * abs(self.above):
            return False
        return self.at_least is None or value >= self.at_least - margin * abs(self.at_least)

    def binds(self, quick: bool) -> bool:
        """Return whether there is a goal and it applies to a form."""
        bounds = (self.at_most, self.at_least, self.above)
        return any(bound is not None for bound in bounds) and not (quick and self.quick)

    def faults(self, measured: Measurement, quick: bool) -> list[str]:
        """Return the reasons why a check fails, one line each."""
        name, value = measured.name, measured.value
        if not math.isfinite(value):
            return [f"{name} is {value}, not a finite number"]
        found = []
        if self.binds(quick) and not self.met(value, self.margin):
            found.append(f"{name} is {value:g} {self.unit}, goal {self}")
        basis = (self.quick or Plausibility()) if quick else self.full
        return found + basis.faults(measured, self.unit)

    def __str__(self) -> str:
        bounds = (("<=", self.at_most), (">=", self.at_least), (">", self.above))
        return " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None) or "none"


@cache
def goals(bench: str) -> dict[str, Goal]:
    """Return the goals of a benchmark, by figure."""
    document = yaml.safe_load((GATES / f"{bench}.yaml").read_text())
    return {name: _goal(fields) for name, fields in document["figures"].items()}


def missed(
    bench: str,
    parts: Collection[str],
    measurements: Sequence[Measurement],
    quick: bool,
) -> list[str]:
    """Return the reasons why figures do not pass their gates, one line each.

    Args:
        bench: the benchmark's name.
        parts: parts that ran; none of their figures may be missing.
        measurements: their results.
        quick: whether they ran in the quick form.
    """
    expected_figures = goals(bench)
    seen = {measured.name for measured in measurements}
    absent = [
        f"{name} is missing from the results of {goal.part}"
        for name, goal in expected_figures.items()
        if goal.part in parts and name not in seen
    ]
    faults = []
    for measured in measurements:
        goal = expected_figures.get(measured.name)
        faults += (
            [f"{measured.name} is not in the gate file"] if goal is None else goal.faults(measured, quick)
        )
    return absent + faults


def _goal(fields: dict[str, Any]) -> Goal:
    full = _basis({key: fields.pop(key) for key in ("expected", "runs") if key in fields})
    quick = fields.pop("quick", None)
    return Goal(**fields, full=full, quick=None if quick is None else _basis(quick))


def _basis(fields: dict[str, Any]) -> Plausibility:
    expected = fields.pop("expected", None)
    return Plausibility(**fields, expected=None if expected is None else tuple(expected))
