"""A benchmark's output: one JSON object, and the folder of `--out DIR` with tables."""

import csv
import json
import math
import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from bench.figures import Measurement, Table
from bench.goals import Goal, goals
from bench.kept import KeptFigure, sources_of
from infra.errors import CommandError, disk_faults
from infra.kafka.files import FileLock, LockedError


def report(bench: str, measurements: Sequence[Measurement], quick: bool, seed: int) -> dict[str, Any]:
    """Return the object that `millrace bench NAME --json` prints."""
    return {
        "bench": bench,
        "commit": commit(),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "load_1_min": round(os.getloadavg()[0], 2),
        },
        "quick": quick,
        "seed": seed,
        "figures": [_figure(measured, _goal_of(bench, measured), quick) for measured in measurements],
    }


def commit() -> str:
    """Return the commit of the checkout that runs, with `+changes` if its code differs; `unknown` outside
    one."""
    root = Path(__file__).parent
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    if not (found := git.stdout.strip()):
        return "unknown"
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!README.md", ":!docs"],
        cwd=root.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return found + ("+changes" if changed.stdout.strip() else "")


def kept_figures(document: dict[str, Any]) -> list[KeptFigure]:
    """Return the figures of a report, each with its commit and machine."""
    machine = document["machine"]
    where = (
        f"{machine['system']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"load {machine['load_1_min']}"
    )
    return [
        KeptFigure(
            name=figure["name"],
            value=figure["value"],
            unit=figure["unit"],
            note=figure["note"],
            quick=document["quick"],
            seed=document["seed"],
            commit=document["commit"],
            machine=where,
            sources=sources_of(document["bench"]),
        )
        for figure in document["figures"]
    ]


def dumps(document: dict[str, Any]) -> str:
    """Return the report as JSON text."""
    return json.dumps(document, indent=2)


def _goal_of(bench: str, measured: Measurement) -> Goal:
    if measured.name not in goals(bench):
        raise KeyError(f"{measured.name} is not in the gate file of {bench}: name it there")
    return goals(bench)[measured.name]


def _figure(measured: Measurement, goal: Goal, quick: bool) -> dict[str, Any]:
    """Return a figure's fields: `met` is null if no goal applies to the quick or full form; the value is null
    if it is not finite."""
    return {
        "name": measured.name,
        "value": float(f"{measured.value:.5g}") if math.isfinite(measured.value) else None,
        "unit": goal.unit,
        "goal": str(goal),
        "met": goal.met(measured.value) if goal.binds(quick) else None,
        "note": f"quick form: {measured.note}" if quick else measured.note,
        "runs": measured.runs,
    }


_LOCK_FILE = "lock"


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Create the folder and lock it against other benchmarks: two at once disturb each other's times.

    Raises:
        CommandError: another benchmark runs there, or a file operation fails.
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


def write_artefacts(folder: Path, document: dict[str, Any], tables: Sequence[Table]) -> None:
    """Write `<bench>.json` and `<table>.csv` into a folder that exists.

    Raises:
        CommandError: a file cannot be written.
    """
    with disk_faults(folder):
        (folder / f"{document['bench']}.json").write_text(dumps(document) + "\n")
        for table in tables:
            with (folder / f"{table.name}.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, table.columns)
                writer.writeheader()
                writer.writerows(table.rows)
