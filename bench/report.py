"""A benchmark's answer as one JSON object: its figures against goals, and where they were measured."""

import json
import math
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from bench.figures import Measurement
from bench.goals import Goal, goals


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
        "figures": [_figure(measured, wanted[measured.name], quick) for measured in measurements],
    }


def dumps(document: dict[str, Any]) -> str:
    """The report as JSON text."""
    return json.dumps(document, indent=2)


def _figure(measured: Measurement, goal: Goal, quick: bool) -> dict[str, Any]:
    """`met` is null where the form is held to no goal, and the value where it is no finite number."""
    return {
        "name": measured.name,
        "value": float(f"{measured.value:.5g}") if math.isfinite(measured.value) else None,
        "unit": goal.unit,
        "goal": str(goal),
        "met": goal.met(measured.value) if goal.binds(quick) else None,
        "note": f"quick form: {measured.note}" if quick else measured.note,
        "runs": measured.runs,
    }


def _commit() -> str:
    """The commit of the checkout this runs from, `unknown` outside one."""
    root = Path(__file__).parent
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return git.stdout.strip() or "unknown"
