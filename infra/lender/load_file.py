"""Loads from a CSV file: columns `time_s`, in seconds from any beginning, and `load`, from 0 to 1."""

import csv
import math
from itertools import pairwise
from pathlib import Path

from infra.errors import CommandError

COLUMNS = ("time_s", "load")


def read_loads(path: Path) -> list[tuple[float, float]]:
    """Times and loads, in the order of the file, which is that of time.

    Raises:
        CommandError: the file cannot be read, or a row is not as it must be; the message names it.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise CommandError(f"{path}: no column {missing[0]}: a file of loads has time_s and load")
            loads = [
                (_number(path, rows.line_num, row, "time_s"), _load(path, rows.line_num, row)) for row in rows
            ]
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise CommandError(f"{path}: no CSV in UTF-8: {error}") from None
    if not loads:
        raise CommandError(f"{path}: no loads")
    for number, ((before_s, _), (time_s, _)) in enumerate(pairwise(loads), 2):
        if time_s <= before_s:
            raise CommandError(f"{path}: row {number}: time_s {time_s:g} does not come after {before_s:g}")
    return loads


def _number(path: Path, line: int, row: dict[str, str], column: str) -> float:
    text = row[column]
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise CommandError(f"{path}:{line}: {column}: {text!r} is no number")
    return value


def _load(path: Path, line: int, row: dict[str, str]) -> float:
    load = _number(path, line, row, "load")
    if not 0 <= load <= 1:
        raise CommandError(f"{path}:{line}: load: {load:g} is not from 0 to 1")
    return load
