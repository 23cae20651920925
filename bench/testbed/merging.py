"""The testbed of merging: fine-tuning jobs that may start from the weights of others."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from bench.testbed.fleet import (
    CELL,
    MODEL,
    SAMPLES_PER_S,
    SEQUENCE_LENGTH,
    Calibrated,
    Size,
    submitted,
    zone_of,
)
from bench.testbed.tuning_times import measured_constants
from bench.testbed.tuning_truth import ObservedTruth
from infra.demo.data import pieces, write_task
from infra.deployment.deployment_folders import Folders
from infra.simulation.merging.tuner import VirtualTuner
from infra.simulation.simulator import Step
from infra.workloads.timed import TimedEvent
from schemas.cells import CellConfigured, Zone
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset
from schemas.merging.commands import TaskAssigned
from schemas.merging.settings import MergingPolicy
from schemas.merging.workload import MergingTerms, TrainingTarget, TuningHyperparameters, TuningWorkload

_BATCH = 4
_RECORDS = 60
_HELD_BACK = 24
_TASKS = {
    "tables": "encodings/cp*.py",
    "more-tables": "encodings/iso8859*.py",
    "help": "pydoc_data/topics.py",
    "programs": "asyncio/*.py",
}
"""Modules of each task's data: two tasks are related."""
_TARGETS: dict[str, float | None] = {"tables": 0.09, "more-tables": 0.09, "help": None, "programs": None}
"""Accuracy that ends a job; None for its iterations alone."""
_LEAST_ITERATIONS, _MOST_ITERATIONS = 45, 135
_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class MergingTestbed:
    """See `Testbed`."""

    policy: ClassVar[str] = "merging"
    slot_s: ClassVar[float] = 4.0
    settings: dict[str, str] = field(
        # Accuracies are measured at the ends of epochs alone, as in the simulation.
        default_factory=lambda: {"MILLRACE_EVALUATION_SHARE": "0", "MILLRACE_CHECKPOINT_S": "30"}
    )

    def zone(self, nodes: int) -> Zone:
        """See `Testbed`."""
        policy = MergingPolicy(
            interval_s=30.0,
            idle_interval_s=4.0,
            prewarm_s=4.0,
            switch_s=2.0,
            profile_iterations=8,
            profile_limit_s=120.0,
            fisher_samples=16,
            modes=("temporal",),
            merges="expected",
        )
        return zone_of(policy, nodes, SAMPLES_PER_S, horizon_slots=1)

    def write_data(self, folders: Folders) -> None:
        """See `Testbed`."""
        for name, pattern in _TASKS.items():
            texts = pieces((pattern,), seed=1)[: _RECORDS + _HELD_BACK]
            write_task(folders.datasets, name, texts, _HELD_BACK)

    def jobs(
        self, cell: CellConfigured, size: Size, seed: int, start_s: float
    ) -> list[TimedEvent[JobSubmitted]]:
        """See `Testbed`."""
        draw = random.Random(f"{seed}/merging")
        mean_iterations = size.length * (_LEAST_ITERATIONS + _MOST_ITERATIONS) / 2
        return [
            TimedEvent(start_s + offset_s, self._job(cell, draw, number, size.length))
            for number, offset_s in enumerate(size.arrivals_s(mean_iterations * _BATCH / SAMPLES_PER_S, seed))
        ]

    def _job(self, cell: CellConfigured, draw: random.Random, number: int, length: float) -> JobSubmitted:
        task = draw.choice(list(_TASKS))
        iterations = round(length * draw.uniform(_LEAST_ITERATIONS, _MOST_ITERATIONS))
        workload = TuningWorkload(
            model=MODEL,
            dataset=Dataset(path=f"{task}.jsonl", samples=_RECORDS),
            validation_path=f"{task}-validation.jsonl",
            hyperparameters=TuningHyperparameters(
                rank=8,
                batch_size=_BATCH,
                sequence_length=SEQUENCE_LENGTH,
                learning_rate=4e-3,
                target_modules=_MODULES,
                seed=draw.randrange(2**31),
            ),
            target=TrainingTarget(accuracy=_TARGETS[task], most_iterations=max(iterations, 1)),
        )
        return submitted(cell, number, workload, MergingTerms())

    def calibrate(self, steps: Sequence[Step], job_ids: frozenset[str]) -> Calibrated:
        """Measure the times of tasks, profile runs and solves by some jobs; all learn as was observed."""
        constants, slowness = measured_constants(steps, job_ids)
        truth = ObservedTruth.of(steps, constants)
        tuner = VirtualTuner(CELL, 1.0, truth, constants.release_s, slowness.at)
        return Calibrated(vars(constants), {TaskAssigned.RUNNER: tuner}, constants.solve_s)
