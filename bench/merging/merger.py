"""Time of the task merger at 3,000 jobs and 240 GPUs on one core, with building the model: on the measured
mix, and on synthetic instances from a search for slow ones.

The search is guided by measured times, so it takes another path on another machine. The slowest instances
that it finds are timed again; the median of three times counts.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from bench.figures import Measurement, Result, Table, Value
from bench.merging.merging_trial import MergingSetting
from bench.merging.random_instances import InstanceShape, measured_mix, synthetic
from bench.runs import on_one_core
from schemas.merging.problems import MergeProblem
from schemas.merging.settings import MergingPolicy
from solvers.merging.merger import merge

UNITS = 3_000
GPUS = 240
_AT_ONCE = 25
"""Tries between two restarts."""
_DRAWN = 8
"""Random ones of these; the others are neighbours of the slowest so far."""
_TIMES = 3
LIMIT_S = MergingPolicy().solve_limit_s


@dataclass(frozen=True)
class SearchExtent:
    """Number of timed instances."""

    mixes: int
    """Instances of each measured mix."""
    tries: int
    """Instances of the search."""
    slowest: int
    """Slowest of the search, timed again."""


FULL = SearchExtent(mixes=20, tries=150, slowest=5)
QUICK = SearchExtent(mixes=3, tries=10, slowest=2)


@dataclass(frozen=True)
class _TimedMerger:
    instance: str
    duration_s: float
    gap_pct: float
    """Gap between the plan and the proven bound."""
    merges: int
    is_limited: bool


def measure_merger(quick: bool, seed: int, settings: Sequence[MergingSetting]) -> Result:
    """Measure `merger_median_s` over the measured mixes, and `merger_worst_s` over all instances."""
    extent = QUICK if quick else FULL
    with on_one_core():
        merge(synthetic(InstanceShape(units=50, gpus=8)), LIMIT_S)  # loads the libraries
        mixes = list(_mixes(extent.mixes, seed, settings))
        found = slow_instances(random.Random(f"slow merges/{seed}"), extent.tries)
        sought = sorted(found, key=lambda timed: -timed[0])
        slowest = [_timed_again(shape) for _, shape in sought[: extent.slowest]]
    worst = max((*mixes, *slowest), key=lambda timed: timed.duration_s)
    usual = statistics.median(timed.duration_s for timed in mixes)
    rows: list[dict[str, Value]] = [
        {"instances": kind, **asdict(timed)}
        for kind, some in (("measured mixes", mixes), ("sought", slowest))
        for timed in some
    ]
    limited = sum(timed.is_limited for timed in slowest)
    size = f"{UNITS:,} jobs, {GPUS} GPUs, one core, limit {LIMIT_S:g} s"
    return Result(
        (
            Measurement(
                "merger_median_s", usual, f"{len(mixes)} instances of measured mixes; {size}", len(mixes)
            ),
            Measurement(
                "merger_worst_s",
                worst.duration_s,
                f"of {len(mixes)} measured mixes and {extent.tries} synthetic instances sought for slowness "
                f"(all have a plan; of the slowest {len(slowest)}, {limited} are not proven to be the best "
                f"to a thousandth): {worst.instance}; {size}",
                len(mixes) + extent.tries,
            ),
        ),
        (Table("merger", rows),),
    )


def slow_instances(rng: random.Random, tries: int) -> Iterator[tuple[float, InstanceShape]]:
    """Yield times and instances, each a neighbour of the slowest since the last restart, or a random one."""
    best, at = -1.0, random_shape(rng)
    for number in range(tries):
        place = number % _AT_ONCE
        shape = random_shape(rng) if place < _DRAWN else neighbour(rng, at)
        duration_s = _timed("", partial(synthetic, shape)).duration_s
        yield duration_s, shape
        if place == 0 or duration_s > best:
            best, at = duration_s, shape


def random_shape(rng: random.Random) -> InstanceShape:
    """Draw an instance, often with extremes: equal jobs, tables of all sizes, and more kinds and transfers
    than in the estimator's problems."""
    least = rng.choice((0.02, 0.1, 0.5, 0.9))
    return InstanceShape(
        units=UNITS,
        gpus=GPUS,
        kinds=rng.choice((1, 2, 9, 18, 32, 32, 90)),
        step_spread=rng.choice((0.0, 0.5, 1.0, 2.0)),
        scaling=rng.choice((0.3, 0.6, 0.85, 0.99, 1.0)),
        most_gpus=rng.choice((4, 16, 64, GPUS, GPUS)),
        every_size=rng.random() < 0.2,
        iteration_spread=rng.choice((0.0, 0.5, 2.0, 4.0)),
        density=rng.choice((0.0, 0.1, 0.5, 1.0, 1.0)),
        least_ratio=least,
        most_ratio=least + rng.choice((0.0, 0.01, 0.3, 1.0)),
        spatial=rng.random() < 0.7,
        running=rng.choice((0.0, 0.5, 1.0)),
        fresh=rng.choice((0.05, 0.3, 0.7, 1.0)),
        leading=rng.choice((0.0, 0.3, 1.0)),
        waited_s=rng.choice((0.0, 60.0, 3_600.0, 1e5)),
        equal_waits=rng.random() < 0.3,
        switch_s=rng.choice((0.0, 6.0, 60.0)),
        seed=rng.randrange(10**6),
    )


def neighbour(rng: random.Random, shape: InstanceShape) -> InstanceShape:
    """Draw an instance that differs in one parameter."""
    other = random_shape(rng)
    name = rng.choice([name for name in vars(shape) if getattr(other, name) != getattr(shape, name)])
    if name in ("least_ratio", "most_ratio"):
        return replace(shape, least_ratio=other.least_ratio, most_ratio=other.most_ratio)
    return replace(shape, **{name: getattr(other, name)})


def _mixes(count: int, seed: int, settings: Sequence[MergingSetting]) -> Iterator[_TimedMerger]:
    for setting in settings:
        profiles, jobs = setting.read()
        for number in range(count):
            make = partial(measured_mix, profiles, jobs, UNITS, GPUS, seed * count + number)
            yield _timed(f"mix of {setting.model} {number}", make)


def _timed_again(shape: InstanceShape) -> _TimedMerger:
    """Time an instance a few times, and return the median."""
    timed = [_timed(shape.text, partial(synthetic, shape)) for _ in range(_TIMES)]
    return sorted(timed, key=lambda one: one.duration_s)[_TIMES // 2]


def _timed(label: str, make: Callable[[], MergeProblem]) -> _TimedMerger:
    problem = make()
    start_s = time.perf_counter()
    solution = merge(problem, LIMIT_S)
    duration_s = time.perf_counter() - start_s
    assert solution.objective is not None
    assert solution.bound is not None
    gap_pct = 100.0 * (solution.objective - solution.bound) / max(abs(solution.objective), 1e-9)
    merged = sum(share.mode != "normal" for share in solution.shares)
    return _TimedMerger(label, duration_s, gap_pct, merged, solution.search == "limited")
