"""The testbed of the auction: bids for shares of nodes, which train several adapters at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from bench.testbed.fleet import CELL, GPU, SAMPLES_PER_S, SEQUENCE_LENGTH, Calibrated, Size, zone_of
from bench.testbed.slot_times import pace_of
from infra.demo.data import write_datasets
from infra.deployment.deployment_folders import Folders
from infra.simulation.lora.slots import VirtualSlots
from infra.simulation.simulator import Step
from infra.workloads.arrivals import Arrival
from infra.workloads.auction import BidDemands, BidDraw
from infra.workloads.timed import TimedEvent
from schemas.auction.settings import AuctionPolicy
from schemas.cells import CellConfigured, ThroughputRow, Zone
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset
from schemas.lora_commands import SlotAssigned

_PLANNED_PART = 0.7
"""Part of a GPU's speed that the zone plans with. The rest of a slot is left for its start and for
checkpoints."""
_TASKS_PER_NODE = 2
_BATCH = 4
_HORIZON_SLOTS = 36
_MEDIAN_SLOTS, _LONGEST_SLOTS = 6.0, 16.0
_SLACK = (2.0, 5.0)
_RECORDS = 24


@dataclass(frozen=True)
class AuctionTestbed:
    """See `Testbed`."""

    policy: ClassVar[str] = "auction"
    slot_s: ClassVar[float] = 10.0
    settings: dict[str, str] = field(default_factory=dict)

    def zone(self, nodes: int) -> Zone:
        """See `Testbed`."""
        full = _PLANNED_PART * SAMPLES_PER_S
        row = ThroughputRow(
            gpu_type=GPU,
            rank=8,
            batch_size=_BATCH,
            sequence_length=SEQUENCE_LENGTH,
            samples_per_s=full / _TASKS_PER_NODE,
            memory_gib=16.0,
        )
        return zone_of(AuctionPolicy(), nodes, full, horizon_slots=_HORIZON_SLOTS, throughput=(row,))

    def write_data(self, folders: Folders) -> None:
        """See `Testbed`."""
        write_datasets(folders.datasets, 0)

    def jobs(
        self, cell: CellConfigured, size: Size, seed: int, start_s: float
    ) -> list[TimedEvent[JobSubmitted]]:
        """See `Testbed`."""
        (zone,) = cell.zones
        mean_gpu_s = size.length * _MEDIAN_SLOTS * self.slot_s / _TASKS_PER_NODE
        arrivals = [
            Arrival(offset_s, f"user-{number % 4}", 1.0 + number % 3)
            for number, offset_s in enumerate(size.arrivals_s(mean_gpu_s, seed))
        ]
        demands = BidDemands(
            median_work_slots=size.length * _MEDIAN_SLOTS,
            longest_work_slots=_LONGEST_SLOTS,
            slack=_SLACK,
            datasets=tuple(Dataset(path=f"{name}.jsonl", samples=_RECORDS) for name in ("data", "files")),
        )
        return BidDraw(cell, zone, (), seed, demands).jobs(arrivals, start_s)

    def calibrate(self, steps: Sequence[Step], job_ids: frozenset[str]) -> Calibrated:
        """Measure the pace of runs, see `pace_of`."""
        pace = pace_of(steps, job_ids)
        return Calibrated({"pace": pace}, {SlotAssigned.RUNNER: VirtualSlots(CELL, max(pace, 1.0))})
