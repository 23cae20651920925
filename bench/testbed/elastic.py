"""The testbed of elastic jobs: data-parallel training whose workers join and leave."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from bench.testbed.fleet import (
    CELL,
    GPU,
    MODEL,
    SAMPLES_PER_S,
    SEQUENCE_LENGTH,
    Calibrated,
    Size,
    submitted,
    zone_of,
)
from bench.testbed.worker_times import ObservedWorkers, worker_times
from infra.demo.data import write_datasets
from infra.deployment.deployment_folders import Folders
from infra.simulation.simulator import Step
from infra.workloads.timed import TimedEvent
from schemas.cells import CellConfigured, Zone
from schemas.elastic.commands import WorkersAssigned
from schemas.elastic.settings import ElasticPolicy
from schemas.elastic.workload import ElasticTerms, ElasticWorkload, TrainingHyperparameters
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset

_BATCH = 8
_LEAST_SAMPLES, _MOST_SAMPLES = 160, 640
_SIZES = ((1, 1), (1, 2), (1, 4), (2, 2))
"""Least and most workers of a job."""


@dataclass(frozen=True)
class ElasticTestbed:
    """See `Testbed`."""

    policy: ClassVar[str] = "elastic"
    slot_s: ClassVar[float] = 4.0
    settings: dict[str, str] = field(default_factory=dict)

    def zone(self, nodes: int) -> Zone:
        """See `Testbed`."""
        policy = ElasticPolicy(reference_gpu_type=GPU, interval_s=4.0, scaling_pause_s=8.0)
        return zone_of(policy, nodes, SAMPLES_PER_S, horizon_slots=1)

    def write_data(self, folders: Folders) -> None:
        """See `Testbed`."""
        write_datasets(folders.datasets, 0)

    def jobs(
        self, cell: CellConfigured, size: Size, seed: int, start_s: float
    ) -> list[TimedEvent[JobSubmitted]]:
        """See `Testbed`."""
        draw = random.Random(f"{seed}/elastic")
        mean_gpu_s = size.length * (_LEAST_SAMPLES + _MOST_SAMPLES) / 2 / SAMPLES_PER_S
        return [
            TimedEvent(start_s + offset_s, self._job(cell, draw, number, size.length))
            for number, offset_s in enumerate(size.arrivals_s(mean_gpu_s, seed))
        ]

    def _job(self, cell: CellConfigured, draw: random.Random, number: int, length: float) -> JobSubmitted:
        least, most = draw.choice(_SIZES)
        samples = length * draw.uniform(_LEAST_SAMPLES, _MOST_SAMPLES)
        workload = ElasticWorkload(
            work_samples=max(round(samples / _BATCH), 1) * _BATCH,
            model=MODEL,
            dataset=Dataset(path="data.jsonl", samples=24),
            hyperparameters=TrainingHyperparameters(
                global_batch_size=_BATCH,
                micro_batch_size=_BATCH,
                sequence_length=SEQUENCE_LENGTH,
                seed=draw.randrange(2**31),
            ),
            min_workers=least,
            max_workers=most,
            # Every other job leaves its speed to be measured.
            samples_per_s=SAMPLES_PER_S if number % 2 else None,
        )
        return submitted(cell, number, workload, ElasticTerms())

    def calibrate(self, steps: Sequence[Step], job_ids: frozenset[str]) -> Calibrated:
        """Measure the speeds and the pauses of workers, see `worker_times`."""
        speeds, pauses = worker_times(steps, job_ids)
        constants = {
            "samples_per_s": speeds.of(1),
            "start_s": pauses.start_s,
            "resize_s": pauses.resize_s,
            "first_report_s": speeds.first_report_s,
        }
        return Calibrated(constants, {WorkersAssigned.RUNNER: ObservedWorkers(CELL, speeds, pauses)})
