"""What `--out DIR` leaves behind: the report, the raw rows as CSV, and a picture of each table."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.figures import Table, dumps


def write_artefacts(folder: Path, report: dict[str, Any], tables: Sequence[Table]) -> None:
    """Write `<bench>.json`, and `<table>.csv` and `<table>.png` for each table."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{report['bench']}.json").write_text(dumps(report) + "\n")
    for table in tables:
        with (folder / f"{table.name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(table.columns)
            writer.writerows(table.rows)
        _draw(table, folder / f"{table.name}.png")


def _draw(table: Table, path: Path) -> None:
    """The share of measurements below each value, one curve per value of the first column but one-off ids."""
    # Loaded here alone: it takes a second, and most runs draw nothing.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups: dict[object, list[float]] = {}
    many_series = len(table.columns) > 2
    for row in table.rows:
        groups.setdefault(row[0] if many_series else "", []).append(float(row[-1]))
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for name, values in groups.items():
        values.sort()
        shares = [(rank + 1) / len(values) for rank in range(len(values))]
        axes.plot(values, shares, label=f"{table.columns[0]} {name}" if many_series else None)
    axes.set(xlabel=table.columns[-1], ylabel="share of measurements", xscale="log", title=table.name)
    axes.grid(alpha=0.3)
    if many_series:
        axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
