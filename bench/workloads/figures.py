"""The points of the paper's figures, each with its setting.

Parameters that a figure does not vary have their base values: 100 mixed nodes, a day of 144 slots, 50
arrivals per slot, five vendors, proportional deadlines. Figure 4 has Figure 8's high load, at which the
number of nodes matters.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from bench.workloads.arrivals import TraceArrivals
from bench.workloads.cell import Gpus
from bench.workloads.paper import DEADLINE_RULES, PaperSetting

BASE = PaperSetting()
LOADS = {"light": 30.0, "medium": 50.0, "high": 80.0}
"""Arrivals per slot."""

NODES = (50, 100, 150, 200)
VENDORS = (2, 5, 10, 15, 20)
TRACES = {"Philly": "jobs_philly.csv.gz", "ITP": "jobs_elasticflow_itp.csv.gz"}
"""File names of real arrivals; the paper's MLaaS and Helios are not available."""

SMALL = ((4, 24, 3.0), (4, 24, 5.0), (6, 24, 4.0), (6, 36, 3.0), (8, 36, 5.0), (10, 48, 5.0))
"""Nodes, slots and arrivals per slot with an offline optimum that is found quickly: demand is 0.7 to 1.9
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


def figures(traces: Path | None, trace_files: Iterable[Path] = ()) -> dict[int, Figure]:
    """Return Figures 4 to 9 by number.

    Args:
        traces: folder of the files of `TRACES`; None leaves them out.
        trace_files: further real arrivals.
    """
    high = replace(BASE, arrivals_per_slot=LOADS["high"])
    every = (
        Figure(4, "nodes", tuple(Point(str(n), replace(high, nodes=n)) for n in NODES)),
        Figure(5, "labour vendors", tuple(Point(str(n), replace(BASE, vendors=n)) for n in VENDORS)),
        Figure(6, "type of nodes", tuple(Point(gpus, replace(BASE, gpus=gpus)) for gpus in get_args(Gpus))),
        _real_arrivals(traces, trace_files),
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


def _real_arrivals(traces: Path | None, trace_files: Iterable[Path]) -> Figure:
    """Return Figure 7, with as many jobs of each trace as the base has tasks."""
    jobs = round(BASE.arrivals_per_slot * BASE.slots)
    present, absent = traces_at_hand(traces, trace_files)
    points = tuple(
        Point(name, replace(BASE, trace=TraceArrivals(path, jobs))) for name, path in present.items()
    )
    return Figure(7, "trace", points, absent)


def traces_at_hand(
    traces: Path | None, trace_files: Iterable[Path]
) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Return files of real arrivals by name, those of `TRACES` first; and a line for each of `TRACES` that is
    absent."""
    known = {} if traces is None else {name: traces / file for name, file in TRACES.items()}
    present = {name: path for name, path in known.items() if path.exists()}
    absent = tuple(f"{name}: {path} is not here" for name, path in known.items() if name not in present)
    return present | {str(path): path for path in trace_files}, absent
