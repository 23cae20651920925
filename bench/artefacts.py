"""The folder of `--out DIR`: one benchmark at a time leaves there its report, tables as CSV, and pictures."""

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.charts import columns_of
from bench.figures import Table
from bench.report import dumps
from infra.errors import CommandError, disk_faults
from infra.kafka.file_lock import FileLock, LockedError

_LOCK_FILE = "lock"


@contextmanager
def kept_to_one_run(folder: Path) -> Iterator[None]:
    """Make the folder and keep other benchmarks out of it meanwhile: two at once measure each other.

    Raises:
        CommandError: another is at work there, or the disk refuses.
    """
    lock = FileLock(folder / _LOCK_FILE)
    with disk_faults(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except LockedError as error:
            raise CommandError(
                f"{folder}: process {error.holder or 'unknown'} runs a benchmark there: wait for it, or "
                "choose another --out"
            ) from None
    try:
        yield
    finally:
        lock.release()


def write_artefacts(folder: Path, report: dict[str, Any], tables: Sequence[Table]) -> None:
    """Write `<bench>.json`, `<table>.csv`, and `<table>.png` where it has rows, into a folder that exists.

    Raises:
        CommandError: the disk refuses.
    """
    with disk_faults(folder):
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
