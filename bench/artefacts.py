"""What `--out DIR` leaves behind: the report, every table as CSV, and a picture of each."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.charts import columns_of
from bench.figures import Table
from bench.report import dumps


def write_artefacts(folder: Path, report: dict[str, Any], tables: Sequence[Table]) -> None:
    """Write `<bench>.json`, and `<table>.csv` and `<table>.png` for each table that has rows."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{report['bench']}.json").write_text(dumps(report) + "\n")
    for table in tables:
        with (folder / f"{table.name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(table.columns)
            writer.writerows(table.rows)
        if table.rows:
            _draw(table, folder / f"{table.name}.png")


def _draw(table: Table, path: Path) -> None:
    # Loaded here alone: it takes a second, and most runs draw nothing.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    table.chart.draw(axes, columns_of(table.columns, table.rows))
    axes.set_title(table.name)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
