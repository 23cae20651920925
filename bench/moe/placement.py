"""Time to decide the placement of a layer's experts, for 64 experts on 64 devices."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from bench.charts import Bars
from bench.figures import Conditions, Measurement, Result, Table
from executors.moe.serving.phases import LayerLayout, StandingPlacement
from solvers.compiled import Floats, Ints
from solvers.experts.placement import DeviceGroup, ExpertDemand
from solvers.experts.schemes import SCHEMES
from solvers.experts.splitting import device_loads

EXPERTS = 64
DEVICES = 64
TOKENS = 65_536
DEFAULT = "balanced"
_REPEATS = 5
"""Repetitions of each timed call; the least time counts, because a decision is the same each time and
disturbances only add."""


def measure_placement(conditions: Conditions) -> Result:
    """Measure `placement_decision_ms`: the slowest decision over drawn and searched batches, by scheme and
    phase."""
    each, steps = (2, 20) if conditions.quick else (10, 200)
    measured = {}
    for name in SCHEMES:
        measured[name] = _measure(name, np.random.default_rng(conditions.seed), each, steps)
    ours = measured[DEFAULT]
    note = (
        f"slowest of {ours.cases} batches, drawn and searched for ({ours.slowest}), phase one or two of "
        f"`{DEFAULT}`, least of {_REPEATS} runs of each; {EXPERTS} experts, {DEVICES} devices, "
        f"{TOKENS:,} tokens"
    )
    rows = [
        (
            name,
            each.cases,
            each.plan_median_ms,
            each.plan_worst_ms,
            each.settle_median_ms,
            each.settle_worst_ms,
            each.mean_load,
        )
        for name, each in measured.items()
    ]
    columns = (
        "scheme",
        "batches",
        "phase one, median, ms",
        "phase one, worst, ms",
        "phase two, median, ms",
        "phase two, worst, ms",
        "busiest device over mean",
    )
    chart = Bars("scheme", "scheme", "phase one, worst, ms", None, "slowest decision of phase one, ms")
    return Result(
        (Measurement("placement_decision_ms", ours.worst_ms, note, ours.cases),),
        (Table("placement_decisions", columns, rows, chart),),
    )


class Case(NamedTuple):
    """A batch for a placement."""

    name: str
    estimated: Ints
    """(experts,) forecast tokens."""
    actual: Ints
    """(experts,) actual tokens."""


Value = TypeVar("Value")


@dataclass(frozen=True)
class _Measured:
    cases: int
    plan_median_ms: float
    plan_worst_ms: float
    settle_median_ms: float
    settle_worst_ms: float
    slowest: str
    """Form of popularity of the slowest batch."""
    mean_load: float
    """Mean over drawn batches of the busiest device's load relative to the mean, after phase two."""

    @property
    def worst_ms(self) -> float:
        return max(self.plan_worst_ms, self.settle_worst_ms)


@dataclass(frozen=True)
class _Timed:
    case: Case
    plan_ms: float
    settle_ms: float
    load: float

    @property
    def ms(self) -> float:
        return max(self.plan_ms, self.settle_ms)


def _measure(name: str, draws: np.random.Generator, each: int, steps: int) -> _Measured:
    cluster = DeviceGroup(DEVICES)
    first = StandingPlacement.first(EXPERTS, cluster)
    layout = LayerLayout(SCHEMES[name], cluster, first, first.placement)

    def timed(case: Case) -> _Timed:
        demand = ExpertDemand.of_counts(case.estimated)
        planned, plan_ms = _least_ms(lambda: layout.plan(demand))
        settled, settle_ms = _least_ms(lambda: layout.settle(planned, demand, case.actual))
        load = int(device_loads(settled.split).max()) * DEVICES / int(case.actual.sum())
        return _Timed(case, plan_ms, settle_ms, load)

    timed(next(drawn_cases(draws, EXPERTS, TOKENS, 1)))  # Compiles.
    drawn = [timed(case) for case in drawn_cases(draws, EXPERTS, TOKENS, each)]
    searched = []
    slowest = max(drawn, key=lambda one: one.ms)
    for _ in range(steps):
        searched.append(timed(changed(slowest.case, draws)))
        slowest = max(slowest, searched[-1], key=lambda one: one.ms)
    cases = [*drawn, *searched]

    def worst(of: Callable[[_Timed], float]) -> tuple[float, str]:
        """Return the slowest time and its form; timed again, because the search also finds disturbances."""
        slow = sorted(cases, key=of)[-_REPEATS:]
        return max((min(of(one), of(timed(one.case))), one.case.name) for one in slow)

    plan_worst, settle_worst = worst(lambda one: one.plan_ms), worst(lambda one: one.settle_ms)
    return _Measured(
        cases=len(cases),
        plan_median_ms=float(np.median([one.plan_ms for one in drawn])),
        plan_worst_ms=plan_worst[0],
        settle_median_ms=float(np.median([one.settle_ms for one in drawn])),
        settle_worst_ms=settle_worst[0],
        slowest=max(plan_worst, settle_worst)[1],
        mean_load=float(np.mean([one.load for one in drawn])),
    )


def _least_ms(decide: Callable[[], Value]) -> tuple[Value, float]:
    least_ms = float("inf")
    for _ in range(_REPEATS):
        began_s = time.perf_counter()
        decided = decide()
        least_ms = min(least_ms, 1_000 * (time.perf_counter() - began_s))
    return decided, least_ms


def drawn_cases(draws: np.random.Generator, experts: int, tokens: int, each: int) -> Iterator[Case]:
    """Yield batches of every form of popularity, `each` per form; forecasts have errors.

    Forms: even, Zipf from mild to strong, Dirichlet from flat to a few experts, a few popular experts among
    equal ones, geometric, one expert alone, and half of the experts unused.
    """
    forms: dict[str, Callable[[], Floats]] = {
        "even": lambda: np.ones(experts),
        "zipf 0.5": lambda: _zipf(experts, 0.5),
        "zipf 1": lambda: _zipf(experts, 1.0),
        "zipf 2": lambda: _zipf(experts, 2.0),
        "dirichlet 1": lambda: draws.dirichlet(np.full(experts, 1.0)),
        "dirichlet 0.1": lambda: draws.dirichlet(np.full(experts, 0.1)),
        "few popular": lambda: np.where(draws.random(experts) < 0.1, 1.0 + experts, 1.0),
        "geometric": lambda: np.power(0.8, np.arange(float(experts))),
        "one alone": lambda: np.eye(experts)[0],
        "half unused": lambda: _zipf(experts, 1.0) * (np.arange(experts) % 2),
    }
    for name, form in forms.items():
        for _ in range(each):
            popularity = draws.permutation(form())
            popularity = popularity / popularity.sum()
            off = popularity * draws.lognormal(0.0, 0.5, experts)
            yield Case(
                name,
                draws.multinomial(tokens, off / off.sum()).astype(np.int64),
                draws.multinomial(tokens, popularity).astype(np.int64),
            )


def changed(case: Case, draws: np.random.Generator) -> Case:
    """Return the case with some tokens moved between experts: the next step of a search for a slow one."""
    return Case(case.name, _moved(case.estimated, draws), _moved(case.actual, draws))


def _moved(tokens: Ints, draws: np.random.Generator) -> Ints:
    moved = tokens.copy()
    for _ in range(int(draws.integers(1, 6))):
        given, taken = draws.integers(0, tokens.size, 2)
        amount = int(draws.integers(0, moved[given] + 1))
        moved[given] -= amount
        moved[taken] += amount
    return moved


def _zipf(experts: int, skew: float) -> Floats:
    weights: Floats = np.power(np.arange(1.0, experts + 1), -skew)
    return weights
