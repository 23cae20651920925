"""The demo's cell: the zones that its scenes need, and times that suit the pace of this machine."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

CELL_FILE = "four-zones.yaml"
USUAL_CUTTING_S = 1.2
"""Time in which a machine cuts the demo's data on which the times of the cell's file are kept."""
MOST_PACE = 15.0
"""A slot is a minute then."""


def pace_of(cutting_s: float) -> float:
    """How many times longer than the cell's file says the demo's slots and time limits are: as many as this
    machine took longer to cut the demo's data. It is never less than 1."""
    return min(max(cutting_s / USUAL_CUTTING_S, 1.0), MOST_PACE)


def write_cell(source: Path, target: Path, policies: Collection[str], pace: float) -> None:
    """Write the cell's file with the zones of these policies alone, and with its times `pace` times as
    long."""
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
