"""The demo's cell: the zones that its scenes need, and times for the speed of this machine."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

CELL_FILE = "four-zones.yaml"
USUAL_CUTTING_S = 1.2
"""Duration of cutting the demo's data on a machine that is fast enough for the times of the cell's file."""
MOST_PACE = 15.0
"""Largest pace, at which a slot is a minute."""


def pace_of(cutting_s: float) -> float:
    """Return the factor, 1 at least, for the slots and time limits of the cell's file: the time that this
    machine took to cut the demo's data, over the usual time."""
    return min(max(cutting_s / USUAL_CUTTING_S, 1.0), MOST_PACE)


def write_cell(source: Path, target: Path, policies: Collection[str], pace: float) -> None:
    """Write the cell's file with only the zones of these policies, and its times multiplied by `pace`."""
    document = yaml.safe_load(source.read_text(encoding="utf-8"))
    (cell,) = document["cells"]
    cell["zones"] = [zone for zone in cell["zones"] if zone["policy"]["kind"] in policies]
    _lengthen(cell, "slot_s", pace)
    _lengthen(cell, "node_timeout_s", pace)
    for zone in cell["zones"]:
        if "lending" in zone:
            _lengthen(zone["lending"], "notice_s", pace)
        if "solve_limit_s" in zone["policy"]:
            _lengthen(zone["policy"], "solve_limit_s", pace)
    target.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def _lengthen(fields: dict[str, Any], name: str, pace: float) -> None:
    fields[name] = round(fields[name] * pace, 1)
