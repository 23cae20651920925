"""Options of a benchmark, and the results of a part: figures, and the tables behind them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from rich.console import Console


@dataclass(frozen=True)
class Conditions:
    """Options of a run, from the command line."""

    quick: bool
    seed: int
    folder: Path
    """Folder of outcomes and artefacts."""
    jobs: int
    """Number of parallel processes, where a benchmark has runs that allow it."""
    console: Console = field(repr=False)
    """Console for progress."""
    traces: Path = Path("traces")
    """Folder of real traces."""
    profiles: Path = Path("profiles")
    """Folder of measured fine-tuning profiles."""
    reviews: Path = Path("reviews")
    """Folder with the archive of rated sentences, if it was fetched."""


Value = float | str | None


@dataclass(frozen=True)
class Measurement:
    """A measured figure."""

    name: str
    value: float
    note: str
    """Method of measurement. If the figure is from a model, the note states so."""
    runs: int = 1
    """Number of sample runs behind it."""


@dataclass(frozen=True)
class Table:
    """Rows behind some figures."""

    name: str
    rows: Sequence[Mapping[str, Value]]
    """Values by column; a row may lack some."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns in the order in which they first occur."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row))


@dataclass(frozen=True)
class Result:
    """Results of one part of a benchmark."""

    measurements: tuple[Measurement, ...]
    tables: tuple[Table, ...] = ()


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the least-squares slope of log y over log x: the power with which y grows."""
    log_x, log_y = [math.log(value) for value in x], [math.log(value) for value in y]
    centre_x, centre_y = fmean(log_x), fmean(log_y)
    rise = math.fsum((a - centre_x) * (b - centre_y) for a, b in zip(log_x, log_y, strict=True))
    return rise / math.fsum((a - centre_x) ** 2 for a in log_x)
