"""The speeds that a zone plans with, as its first jobs have shown them on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from schemas.cells import GpuType, ThroughputRow, Zone

Part = TypeVar("Part", GpuType, ThroughputRow)

SAFETY = 0.5
"""The part of what was measured that is planned with: later there is more to do at a time."""
_LEAST_PART_OF_SLOT = 0.25
"""A run is taken to have at least so much of its slot."""


@dataclass(frozen=True)
class FirstRun:
    """A run of one slot that had a node to itself."""

    samples: int
    slot_start_s: float
    started_s: float
    finished_s: float

    def sustained_samples_per_s(self, slot_s: float) -> float:
        """The speed to plan with: what the run trained per second, of which so much of a slot is lost again
        as this one lost before it began, with room to spare."""
        training_s = max(self.finished_s - self.started_s, 1e-3)
        lost_s = max(self.started_s - self.slot_start_s, 0.0)
        part = max(1.0 - lost_s / slot_s, _LEAST_PART_OF_SLOT)
        return SAFETY * part * self.samples / training_s


def zone_at(zone: Zone, samples_per_s: Mapping[str, float]) -> Zone:
    """The zone with these speeds of full nodes by GPU type; tasks keep the parts of a node that they have."""
    factors = {gpu.name: samples_per_s[gpu.name] / gpu.samples_per_s for gpu in zone.gpu_types}

    def scaled(part: Part, gpu_type: str) -> Part:
        return part.model_copy(update={"samples_per_s": round(part.samples_per_s * factors[gpu_type], 2)})

    return zone.model_copy(
        update={
            "gpu_types": tuple(scaled(gpu, gpu.name) for gpu in zone.gpu_types),
            "throughput": tuple(scaled(row, row.gpu_type) for row in zone.throughput),
        }
    )
