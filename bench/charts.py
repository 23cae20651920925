"""Charts of tables: columns by name, independent of their content."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

_LABEL_WIDTH = 45
"""Characters per line of an axis label: as many as a picture is high."""

Columns = dict[str, list[Any]]
"""Values of a table by column, rows in their order."""


@dataclass(frozen=True)
class Curves:
    """The share of measurements below each value, one curve per value of the first of several columns. Values
    that are not numbers are left out."""

    def draw(self, axes: Any, columns: Columns) -> None:
        """Draw on matplotlib's axes."""
        names = list(columns)
        many_series = len(names) > 2
        groups: dict[object, list[float]] = {}
        for series, value in zip(columns[names[0]], columns[names[-1]], strict=True):
            if isinstance(value, int | float):
                groups.setdefault(series if many_series else "", []).append(float(value))
        for series, values in groups.items():
            values.sort()
            shares = [(rank + 1) / len(values) for rank in range(len(values))]
            axes.plot(values, shares, label=f"{names[0]} {series}" if many_series else None)
        axes.set(xlabel=names[-1], ylabel="share of measurements", xscale="log")
        _finish(axes, "both", many_series)


@dataclass(frozen=True)
class Bars:
    """Bars side by side: one group per value of a column, with one bar per value of another."""

    group: str
    series: str
    height: str
    error: str | None
    """Column with half the widths of intervals, which may lack values; None if no bar has an interval."""
    label: str
    """Quantity that is the height, with its unit."""

    def draw(self, axes: Any, columns: Columns) -> None:
        """Draw on matplotlib's axes."""
        groups, series = (list(dict.fromkeys(columns[name])) for name in (self.group, self.series))
        width = 0.8 / len(series)
        for place, name in enumerate(series):
            rows = [row for row, value in enumerate(columns[self.series]) if value == name]
            axes.bar(
                [groups.index(columns[self.group][row]) + (place + 0.5) * width - 0.4 for row in rows],
                [columns[self.height][row] for row in rows],
                width,
                yerr=[columns[self.error][row] or 0.0 for row in rows] if self.error else None,
                capsize=2,
                label=name,
            )
        axes.set(xlabel=self.group, ylabel=fill(self.label, _LABEL_WIDTH))
        axes.set_xticks(range(len(groups)), groups)
        _finish(axes, "y", labelled=True)


@dataclass(frozen=True)
class Lines:
    """A line per value of a column, both axes logarithmic."""

    series: str
    x: str
    y: tuple[str, ...]
    """Columns, each drawn as a line."""
    label: str
    """Quantity of the columns, with its unit."""
    x_label: str

    def draw(self, axes: Any, columns: Columns) -> None:
        """Draw on matplotlib's axes."""
        for series in dict.fromkeys(columns[self.series]):
            rows = [row for row, value in enumerate(columns[self.series]) if value == series]
            for name in self.y:
                label = f"{series}: {name}" if len(self.y) > 1 else series
                x, y = ([columns[column][row] for row in rows] for column in (self.x, name))
                axes.plot(x, y, marker="o", label=label)
        axes.set(xlabel=self.x_label, ylabel=fill(self.label, _LABEL_WIDTH), xscale="log", yscale="log")
        sizes = sorted(set(columns[self.x]))
        axes.set_xticks(sizes, [f"{size:g}" for size in sizes], rotation=45)
        axes.xaxis.minorticks_off()
        _finish(axes, "both", labelled=True)


Chart = Curves | Bars | Lines


def columns_of(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Columns:
    """Return the values of a table by column."""
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _finish(axes: Any, grid: str, labelled: bool) -> None:
    axes.grid(alpha=0.3, axis=grid)
    axes.set_axisbelow(True)
    if labelled:
        axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
