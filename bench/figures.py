"""A benchmark's options, and the results of a part: figures, and the tables behind them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from rich.console import Console

from bench.charts import Chart, Curves


@dataclass(frozen=True)
class Conditions:
    """What the command line says of a run."""

    quick: bool
    seed: int
    folder: Path
    """Where rows are kept, and artefacts written."""
    jobs: int
    """Processes beside each other, where a benchmark has runs that may be."""
    traces: Path
    """Folder of the benchmark's own real traces."""
    trace_files: tuple[Path, ...]
    """Further real traces."""
    console: Console = field(repr=False)
    """For progress."""
    profiles: Path = Path("profiles")
    """Folder of measured fine-tuning profiles."""
    model: str | None = None
    """The one base model that is asked for."""
    workload: Path | None = None
    """Jobs for it, in place of the folder's own."""
    reviews: Path = Path("reviews")
    """Folder with the archive of rated sentences, if they were fetched."""


Value = float | str | None
_RAW = Curves()


@dataclass(frozen=True)
class Measurement:
    """A figure as it was seen."""

    name: str
    value: float
    note: str
    """How it was measured; a figure from a model says so."""
    runs: int = 1
    """Sample runs that it rests on."""


@dataclass(frozen=True)
class Table:
    """Rows behind some figures."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Value, ...]]
    chart: Chart = _RAW
    """How it is drawn; the default is for raw rows, whose last column is what was measured."""

    @property
    def is_raw(self) -> bool:
        """Whether it holds single measurements, too many to read."""
        return isinstance(self.chart, Curves)


@dataclass(frozen=True)
class Result:
    """What one part of a benchmark saw."""

    measurements: tuple[Measurement, ...]
    tables: tuple[Table, ...] = ()


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the least-squares slope of log y over log x: the power with which y grows."""
    log_x, log_y = [math.log(value) for value in x], [math.log(value) for value in y]
    centre_x, centre_y = fmean(log_x), fmean(log_y)
    rise = math.fsum((a - centre_x) * (b - centre_y) for a, b in zip(log_x, log_y, strict=True))
    return rise / math.fsum((a - centre_x) ** 2 for a in log_x)
