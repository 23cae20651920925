"""Extent of a benchmark: the paper's evaluation in full, or a form of it that takes a minute."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.auction.everyday import (
    DRAWN,
    EVERYDAY_LOADS,
    NIGHT_PART,
    WORKING_DAY,
    WORKING_LOADS,
    Everyday,
    EverydayLoad,
)
from bench.figures import Conditions
from bench.workloads.arrivals import TraceArrivals
from bench.workloads.figures import (
    BASE,
    LOADS,
    SMALL,
    SMALL_LOADED,
    SMALL_WORK_SCALE,
    Figure,
    Point,
    figure_12,
    figures,
    traces_at_hand,
)
from bench.workloads.paper import PaperSetting, arrivals_for_load

SEEDS = 5
QUICK_SEEDS = 2
COMPARISONS = (4, 5, 6, 7, 8, 9)

EVERYDAY_NODES = 24
EVERYDAY_SEEDS = 3
EVERYDAY_DEVIATIONS = (1.0, 1.75)

_QUICK_SCALE = 30
_QUICK_SLOTS = 24
_QUICK_SMALL = ((4, 18, 2.0),)
_QUICK_SMALL_LOADED = ((2, 12, 3.0),)
"""Settings with an optimum that is found in a second."""
_QUICK_EVERYDAY_NODES = 2
_QUICK_EVERYDAY_LOADS = (0.5, 4.0)


@dataclass(frozen=True)
class AuctionScope:
    """The settings and days of each part."""

    seeds: tuple[int, ...]
    comparisons: tuple[Figure, ...]
    small: Figure
    """Settings with an optimum that can be found."""
    small_loaded: Figure
    """Settings like `small`, with the load of the comparisons."""
    runtime: tuple[Point, ...]
    everyday: Everyday
    """Settings of the auction with nothing declared."""
    working_days: Everyday
    """Settings of `everyday` on days with a night."""
    high: PaperSetting
    """High load, at which the figures are measured."""


def scope_of(conditions: Conditions) -> AuctionScope:
    """Return the full or the quick form, and check its traces: hours may pass before a day is drawn from one.

    Raises:
        TraceError: a trace cannot be read, or is too short.
    """
    if conditions.quick:
        scope = quick(conditions.seed, conditions.trace_files)
    else:
        scope = full(conditions.seed, conditions.traces, conditions.trace_files)
    settings = [point.setting for figure in scope.comparisons for point in figure.points]
    settings += [load.setting for load in scope.everyday.loads]
    for trace in dict.fromkeys(setting.trace for setting in settings):
        if isinstance(trace, TraceArrivals):
            trace.check()
    return scope


def full(seed: int, traces: Path, trace_files: Sequence[Path] = ()) -> AuctionScope:
    """Return the full form, on consecutive days from `seed` on."""
    every = figures(traces, trace_files)
    high = replace(BASE, arrivals_per_slot=LOADS["high"])
    return AuctionScope(
        seeds=tuple(range(seed, seed + SEEDS)),
        comparisons=tuple(every[number] for number in COMPARISONS),
        small=figure_12(SMALL),
        small_loaded=figure_12(SMALL_LOADED),
        runtime=every[4].points,
        everyday=_everyday(
            replace(BASE, nodes=EVERYDAY_NODES),
            EVERYDAY_LOADS,
            EVERYDAY_DEVIATIONS,
            range(seed, seed + EVERYDAY_SEEDS),
            traces,
            trace_files,
        ),
        working_days=_working_days(
            replace(BASE, nodes=EVERYDAY_NODES), WORKING_LOADS, range(seed, seed + EVERYDAY_SEEDS)
        ),
        high=high,
    )


def quick(seed: int, trace_files: Sequence[Path] = ()) -> AuctionScope:
    """Return the quick form: three nodes for a sixth of the day, as loaded as in full by smaller tasks;
    Figure 8 alone, and few days. Real arrivals are included only if their files are named.

    """
    every = figures(None, trace_files)
    high = _shrunk(replace(BASE, arrivals_per_slot=LOADS["high"]))
    return AuctionScope(
        seeds=tuple(range(seed, seed + QUICK_SEEDS)),
        comparisons=tuple(
            replace(
                every[number],
                points=tuple(Point(point.label, _shrunk(point.setting)) for point in every[number].points),
            )
            for number in (7, 8)
            if every[number].points
        ),
        small=figure_12(_QUICK_SMALL),
        small_loaded=figure_12(_QUICK_SMALL_LOADED),
        runtime=(Point("high", high),),
        everyday=_everyday(
            replace(high, nodes=_QUICK_EVERYDAY_NODES),
            _QUICK_EVERYDAY_LOADS,
            (BASE.density.log_deviation,),
            range(seed, seed + QUICK_SEEDS),
            None,
            trace_files,
        ),
        working_days=_working_days(
            replace(high, nodes=_QUICK_EVERYDAY_NODES, slots=BASE.slots),
            WORKING_LOADS[-1:],
            range(seed, seed + QUICK_SEEDS),
        ),
        high=high,
    )


def _everyday(
    base: PaperSetting,
    loads: Sequence[float],
    deviations: Sequence[float],
    seeds: Sequence[int],
    traces: Path | None,
    trace_files: Sequence[Path],
) -> Everyday:
    """Return every load with drawn arrivals and with those of each trace, at each deviation of values."""
    present, absent = traces_at_hand(traces, trace_files)
    found = []
    for arrivals, path in {DRAWN: None, **present}.items():
        for deviation in deviations:
            for load in loads:
                per_slot = arrivals_for_load(load, base.nodes, base.gpus, base.work_scale)
                jobs = max(round(per_slot * base.slots), 1)
                setting = replace(
                    base,
                    arrivals_per_slot=per_slot,
                    trace=None if path is None else TraceArrivals(path, jobs),
                    density=replace(base.density, log_deviation=deviation),
                )
                found.append(EverydayLoad(arrivals, load, deviation, setting))
    return Everyday(tuple(found), tuple(seeds), absent)


def _working_days(base: PaperSetting, loads: Sequence[float], seeds: Sequence[int]) -> Everyday:
    found = []
    for load in loads:
        per_slot = arrivals_for_load(load, base.nodes, base.gpus, base.work_scale)
        setting = replace(base, arrivals_per_slot=per_slot, night_part=NIGHT_PART)
        found.append(EverydayLoad(WORKING_DAY, load, base.density.log_deviation, setting))
    return Everyday(tuple(found), tuple(seeds))


def _shrunk(setting: PaperSetting) -> PaperSetting:
    # As much work per node as in full, of smaller tasks.
    arrivals_per_slot = setting.arrivals_per_slot / (_QUICK_SCALE * SMALL_WORK_SCALE)
    jobs = round(arrivals_per_slot * _QUICK_SLOTS)
    return replace(
        setting,
        nodes=setting.nodes // _QUICK_SCALE,
        slots=_QUICK_SLOTS,
        arrivals_per_slot=arrivals_per_slot,
        trace=setting.trace and replace(setting.trace, jobs=jobs),
        work_scale=SMALL_WORK_SCALE,
    )
