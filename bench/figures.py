"""What a benchmark answers: figures against goals that are data, as one JSON object."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

GATES = Path(__file__).parent / "gates"


@dataclass(frozen=True)
class Measurement:
    """A figure as it was seen."""

    name: str
    value: float
    note: str
    """How it was measured; a figure from a model says so."""


@dataclass(frozen=True)
class Table:
    """Raw rows behind some figures. The last column is what was measured."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[float | str, ...]]


@dataclass(frozen=True)
class Result:
    """What one part of a benchmark saw."""

    measurements: tuple[Measurement, ...]
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Goal:
    """What a gate file asks of a figure."""

    unit: str
    at_most: float | None = None
    at_least: float | None = None
    margin: float = 0.0
    """Share by which `make bench` lets the figure miss the goal: machines differ."""

    def met(self, value: float, margin: float = 0.0) -> bool:
        """Whether a value reaches the goal, give or take a share of it."""
        if self.at_most is not None and value > self.at_most * (1 + margin):
            return False
        return self.at_least is None or value >= self.at_least * (1 - margin)

    def __str__(self) -> str:
        bounds = (("<=", self.at_most), (">=", self.at_least))
        return " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)


def goals(bench: str) -> dict[str, Goal]:
    """The goals of a benchmark, by figure."""
    document = yaml.safe_load((GATES / f"{bench}.yaml").read_text())
    return {name: Goal(**fields) for name, fields in document["figures"].items()}


def missed(bench: str, measurements: Sequence[Measurement]) -> list[str]:
    """Every figure that misses its goal by more than its margin, one line each."""
    wanted = goals(bench)
    return [
        f"{m.name} is {m.value:g} {wanted[m.name].unit}, wanted {wanted[m.name]}"
        for m in measurements
        if not wanted[m.name].met(m.value, wanted[m.name].margin)
    ]


def report(bench: str, measurements: Sequence[Measurement], quick: bool, seed: int) -> dict[str, Any]:
    """The object that `millrace bench NAME --json` prints."""
    wanted = goals(bench)
    return {
        "bench": bench,
        "commit": _commit(),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "load_1_min": round(os.getloadavg()[0], 2),
        },
        "quick": quick,
        "seed": seed,
        "figures": [
            {
                "name": m.name,
                "value": float(f"{m.value:.5g}"),
                "unit": wanted[m.name].unit,
                "goal": str(wanted[m.name]),
                "met": wanted[m.name].met(m.value),
                "note": m.note,
            }
            for m in measurements
        ],
    }


def dumps(document: dict[str, Any]) -> str:
    """The report as JSON text."""
    return json.dumps(document, indent=2)


def _commit() -> str:
    """The commit of the checkout this runs from, `unknown` outside one."""
    root = Path(__file__).parent
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return git.stdout.strip() or "unknown"
