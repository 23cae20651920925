"""CSV files of the zones' figures in a simulation."""

import csv
from collections.abc import Mapping
from pathlib import Path

from infra.errors import disk_faults
from infra.figures.zone import Table


def write_tables(directory: Path, tables_of: Mapping[str, Mapping[str, Table]]) -> None:
    """Write a file for each name of a table, with the rows of all zones that have one.

    Args:
        directory: Folder for the files, which exists.
        tables_of: Tables by zone, and by the name of the file without its ending.

    Raises:
        CommandError: a file cannot be written.
    """
    by_name: dict[str, list[dict[str, object]]] = {}
    for zone, tables in tables_of.items():
        for name, table in tables.items():
            by_name.setdefault(name, []).extend({"zone": zone, **row} for row in table)
    for name, rows in by_name.items():
        path = directory / f"{name}.csv"
        columns = dict.fromkeys(column for row in rows for column in row)
        with disk_faults(path), path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(columns), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
