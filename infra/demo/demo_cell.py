"""The demo's cell: the zones of its scenes, times for this machine, and the speeds measured on it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from schemas.cells import GpuType, ThroughputRow, Zone

CELL_FILE = "four-zones.yaml"
USUAL_CUTTING_S = 1.2
"""Reference duration of cutting the demo's data (s); on a slower machine all times are scaled."""
MOST_PACE = 15.0
"""Largest pace, at which a slot is a minute."""


SAFETY = 0.5
"""Part of the measured speed that is planned with: later, more runs share the machine."""
_LEAST_PART_OF_SLOT = 0.25
"""Least part of its slot that a run is assumed to have."""


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


Part = TypeVar("Part", GpuType, ThroughputRow)


@dataclass(frozen=True)
class FirstRun:
    """A run of one slot, alone on its node."""

    samples: int
    slot_start_s: float
    started_s: float
    finished_s: float

    def sustained_samples_per_s(self, slot_s: float) -> float:
        """Return the speed to plan with: the run's samples per second, less the part of a slot before its
        start, times `SAFETY`."""
        training_s = max(self.finished_s - self.started_s, 1e-3)
        lost_s = max(self.started_s - self.slot_start_s, 0.0)
        part = max(1.0 - lost_s / slot_s, _LEAST_PART_OF_SLOT)
        return SAFETY * part * self.samples / training_s


def zone_at(zone: Zone, samples_per_s: Mapping[str, float]) -> Zone:
    """Return the zone with node speeds, by GPU type, replaced; rows of tasks are scaled alike."""
    factors = {gpu.name: samples_per_s[gpu.name] / gpu.samples_per_s for gpu in zone.gpu_types}

    def scaled(part: Part, gpu_type: str) -> Part:
        return part.model_copy(update={"samples_per_s": round(part.samples_per_s * factors[gpu_type], 2)})

    return zone.model_copy(
        update={
            "gpu_types": tuple(scaled(gpu, gpu.name) for gpu in zone.gpu_types),
            "throughput": tuple(scaled(row, row.gpu_type) for row in zone.throughput),
        }
    )
