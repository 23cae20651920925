"""Settings and days of a run: the points of the paper's figures in full, or a form that takes a minute.

Parameters that a figure does not vary have their base values: 100 mixed nodes, a day of 144 slots, 50
arrivals per slot, five vendors, proportional deadlines. Figure 4 has Figure 8's high load, at which the
number of nodes matters.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from bench.figures import Conditions
from bench.workloads.arrivals import TraceArrivals
from bench.workloads.paper import DEADLINE_RULES, Gpus, PaperSetting, arrivals_for_load

BASE = PaperSetting()
LOADS = {"light": 30.0, "medium": 50.0, "high": 80.0}
"""Arrivals per slot."""

NODES = (50, 100, 150, 200)
VENDORS = (2, 5, 10, 15, 20)
TRACES = {"Philly": "jobs_philly.csv.gz", "ITP": "jobs_elasticflow_itp.csv.gz"}
"""File names of real arrivals; the paper's MLaaS and Helios are not available."""

SMALL = ((4, 24, 3.0), (4, 24, 5.0), (6, 24, 4.0), (6, 36, 3.0), (8, 36, 5.0), (10, 48, 5.0))
"""Nodes, slots and arrivals per slot for which the offline optimum is found quickly. Demand is 0.7 to 1.9
times the capacity of the nodes, less than at any of `LOADS`."""
SMALL_LOADED = ((4, 24, 8.0), (4, 24, 13.0))
"""Sizes with the load of `BASE` at medium and at high load, where proving the optimum takes minutes."""
SMALL_WORK_SCALE = 0.25
"""A task of the full size takes 40 slots in the mean: too long for 24."""


@dataclass(frozen=True)
class Point:
    """One point on a figure's axis."""

    label: str
    setting: PaperSetting


@dataclass(frozen=True)
class Figure:
    """Settings that a figure compares."""

    number: int
    axis: str
    points: tuple[Point, ...]
    skipped: tuple[str, ...] = ()
    """Reasons why points are absent, one line each."""


def figures(traces: Path | None) -> dict[int, Figure]:
    """Return Figures 4 to 9 by number.

    Args:
        traces: folder of the files of `TRACES`; None leaves them out.
    """
    high = replace(BASE, arrivals_per_slot=LOADS["high"])
    every = (
        Figure(4, "nodes", tuple(Point(str(n), replace(high, nodes=n)) for n in NODES)),
        Figure(5, "labour vendors", tuple(Point(str(n), replace(BASE, vendors=n)) for n in VENDORS)),
        Figure(6, "type of nodes", tuple(Point(gpus, replace(BASE, gpus=gpus)) for gpus in get_args(Gpus))),
        _real_arrivals(traces),
        Figure(
            8,
            "workload",
            tuple(Point(name, replace(BASE, arrivals_per_slot=mean)) for name, mean in LOADS.items()),
        ),
        Figure(
            9,
            "deadlines",
            tuple(Point(rule, replace(BASE, deadlines=rule)) for rule in DEADLINE_RULES),
        ),
    )
    return {figure.number: figure for figure in every}


def figure_12(sizes: Iterable[tuple[int, int, float]]) -> Figure:
    """Return settings by nodes, slots and arrivals per slot, with work that fits into such days."""
    points = tuple(
        Point(
            f"{nodes} x {slots}, {arrivals_per_slot:g}",
            replace(
                BASE,
                nodes=nodes,
                slots=slots,
                arrivals_per_slot=arrivals_per_slot,
                work_scale=SMALL_WORK_SCALE,
            ),
        )
        for nodes, slots, arrivals_per_slot in sizes
    )
    return Figure(12, "nodes x slots, arrivals per slot", points)


def _real_arrivals(traces: Path | None) -> Figure:
    """Return Figure 7, with as many jobs of each trace as the base has tasks."""
    jobs = round(BASE.arrivals_per_slot * BASE.slots)
    paths = {} if traces is None else {name: traces / file for name, file in TRACES.items()}
    points = tuple(
        Point(name, replace(BASE, trace=TraceArrivals(path, jobs)))
        for name, path in paths.items()
        if path.exists()
    )
    absent = tuple(f"{name}: {path} is not here" for name, path in paths.items() if not path.exists())
    return Figure(7, "trace", points, absent)


SEEDS = 5
QUICK_SEEDS = 2
COMPARISONS = (4, 5, 6, 7, 8, 9)

EVERYDAY_NODES = 24
EVERYDAY_LOADS = (0.2, 0.5, 1.0, 2.0, 4.0)
EVERYDAY_SEEDS = 3
EVERYDAY_DEVIATIONS = (1.0, 1.75)

FIRST_NEW_SEED = 100
"""No constant was chosen on seeds from here on; the distributions and traces are those of the others."""
NEW_DAYS = 7
NEW_NODES, NEW_SLOTS, NEW_LOAD = 4, 36, 2.0

MEASURED_FIGURES = (4, 5, 6, 8, 9)
MEASURED_SCALE = 25
"""Divisor of the paper's nodes: 2 to 8 are left."""
MEASURED_SLOTS = 72

_QUICK_SCALE = 30
_QUICK_MEASURED_SLOTS = 48
_QUICK_SLOTS = 24
_QUICK_SMALL = ((4, 18, 2.0),)
_QUICK_SMALL_LOADED = ((2, 12, 3.0),)
"""Settings with an optimum that is found in a second."""
_QUICK_EVERYDAY_NODES = 2
_QUICK_EVERYDAY_LOADS = (0.5, 4.0)


@dataclass(frozen=True)
class EverydayLoad:
    """A kind of day."""

    load: float
    """Demand over the fleet's capacity: see `arrivals_for_load`."""
    deviation: float
    """Deviation of the logarithm of users' values."""
    setting: PaperSetting

    def __str__(self) -> str:
        return f"deviation {self.deviation:g}, load {self.load:g}"


@dataclass(frozen=True)
class Everyday:
    """Days of the auction with nothing declared."""

    loads: tuple[EverydayLoad, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class NewDays:
    """Days of `auction` and `pdftsp` with seeds that no constant was chosen on, by kind of arrivals."""

    settings: Mapping[str, PaperSetting]
    seeds: tuple[int, ...]


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
    new_days: NewDays
    measured: tuple[Figure, ...]
    """Figures with measured speeds."""
    high: PaperSetting
    """High load, at which the figures are measured."""


def scope_of(conditions: Conditions) -> AuctionScope:
    """Return the full or the quick form. Check its traces now, since hours may pass before a day is drawn
    from a trace.

    Raises:
        TraceError: a trace cannot be read, or is too short.
    """
    scope = quick(conditions.seed) if conditions.quick else full(conditions.seed, conditions.traces)
    for figure in scope.comparisons:
        for trace in (point.setting.trace for point in figure.points):
            if isinstance(trace, TraceArrivals):
                trace.check()
    return scope


def full(seed: int, traces: Path) -> AuctionScope:
    """Return the full form, on consecutive days from `seed` on."""
    every = figures(traces)
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
        ),
        new_days=_new_days(traces, range(seed + FIRST_NEW_SEED, seed + FIRST_NEW_SEED + NEW_DAYS)),
        measured=tuple(
            _measured(figures(None)[number], MEASURED_SCALE, MEASURED_SLOTS) for number in MEASURED_FIGURES
        ),
        high=high,
    )


def quick(seed: int) -> AuctionScope:
    """Return the quick form: Figure 8 alone, few days, and three nodes for a sixth of a day. Smaller tasks
    make its load that of the full form."""
    high = _shrunk(replace(BASE, arrivals_per_slot=LOADS["high"]))
    loads = figures(None)[8]
    points = tuple(Point(point.label, _shrunk(point.setting)) for point in loads.points)
    return AuctionScope(
        seeds=tuple(range(seed, seed + QUICK_SEEDS)),
        comparisons=(replace(loads, points=points),),
        small=figure_12(_QUICK_SMALL),
        small_loaded=figure_12(_QUICK_SMALL_LOADED),
        runtime=(Point("high", high),),
        everyday=_everyday(
            replace(high, nodes=_QUICK_EVERYDAY_NODES),
            _QUICK_EVERYDAY_LOADS,
            (BASE.density.log_deviation,),
            range(seed, seed + QUICK_SEEDS),
        ),
        new_days=_new_days(None, range(seed + FIRST_NEW_SEED, seed + FIRST_NEW_SEED + QUICK_SEEDS)),
        measured=(_measured(loads, _QUICK_SCALE, _QUICK_MEASURED_SLOTS),),
        high=high,
    )


def _everyday(
    base: PaperSetting, loads: Sequence[float], deviations: Sequence[float], seeds: Sequence[int]
) -> Everyday:
    """Return every load at each deviation of values."""
    found = []
    for deviation in deviations:
        density = replace(base.density, log_deviation=deviation)
        for load in loads:
            per_slot = arrivals_for_load(load, base.nodes, base.gpus, base.work_scale)
            setting = replace(base, arrivals_per_slot=per_slot, density=density)
            found.append(EverydayLoad(load, deviation, setting))
    return Everyday(tuple(found), tuple(seeds))


def _new_days(traces: Path | None, seeds: Iterable[int]) -> NewDays:
    """Return small days at twice the capacity, with drawn arrivals and those of the traces that are here."""
    per_slot = arrivals_for_load(NEW_LOAD, NEW_NODES, BASE.gpus, SMALL_WORK_SCALE)
    drawn = replace(
        BASE, nodes=NEW_NODES, slots=NEW_SLOTS, arrivals_per_slot=per_slot, work_scale=SMALL_WORK_SCALE
    )
    jobs = round(per_slot * NEW_SLOTS)
    real = {
        point.label: replace(drawn, trace=replace(point.setting.trace, jobs=jobs))
        for point in _real_arrivals(traces).points
        if isinstance(point.setting.trace, TraceArrivals)
    }
    return NewDays({"drawn": drawn, **real}, tuple(seeds))


def _measured(figure: Figure, scale: int, slots: int) -> Figure:
    """Return a figure with measured speeds, on fewer nodes with the same load."""

    def setting_of(modelled: PaperSetting) -> PaperSetting:
        return replace(
            modelled,
            nodes=modelled.nodes // scale,
            slots=slots,
            arrivals_per_slot=modelled.arrivals_per_slot / scale,
            speeds="measured",
        )

    return replace(
        figure, points=tuple(Point(point.label, setting_of(point.setting)) for point in figure.points)
    )


def _shrunk(setting: PaperSetting) -> PaperSetting:
    # As much work per node as in full, of smaller tasks.
    arrivals_per_slot = setting.arrivals_per_slot / (_QUICK_SCALE * SMALL_WORK_SCALE)
    return replace(
        setting,
        nodes=setting.nodes // _QUICK_SCALE,
        slots=_QUICK_SLOTS,
        arrivals_per_slot=arrivals_per_slot,
        work_scale=SMALL_WORK_SCALE,
    )
