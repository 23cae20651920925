"""Speeds that a zone plans with, as measured by its first jobs on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from schemas.cells import GpuType, ThroughputRow, Zone

Part = TypeVar("Part", GpuType, ThroughputRow)

SAFETY = 0.5
"""Part of the measured speed that is planned with: later, more runs share the machine."""
_LEAST_PART_OF_SLOT = 0.25
"""Least part of its slot that a run is assumed to have."""


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
    """Return the zone with these speeds of full nodes by GPU type; tasks keep their parts of a node."""
    factors = {gpu.name: samples_per_s[gpu.name] / gpu.samples_per_s for gpu in zone.gpu_types}

    def scaled(part: Part, gpu_type: str) -> Part:
        return part.model_copy(update={"samples_per_s": round(part.samples_per_s * factors[gpu_type], 2)})

    return zone.model_copy(
        update={
            "gpu_types": tuple(scaled(gpu, gpu.name) for gpu in zone.gpu_types),
            "throughput": tuple(scaled(row, row.gpu_type) for row in zone.throughput),
        }
    )
