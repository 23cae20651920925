"""Datasets that drawn jobs are fine-tuned on, and the demands of a job."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.lora import Dataset
from schemas.merging.settings import STAGES_PER_PIPELINE
from schemas.merging.workload import TrainingTarget, TuningHyperparameters, TuningWorkload

FEWEST_SAMPLES, MOST_SAMPLES = 500, 100_000
"""Bounds of the size of a dataset. Those of the measured profiles have 159 to 137,344 samples."""
BATCH_SIZES = (8, 16, 32)
LEAST_TARGET, MOST_TARGET = 0.6, 0.95
MOST_EPOCHS = 10
"""Epochs after which the runs of the measured profiles stop."""
LEARNING_RATES = (1e-4, 1e-3)
"""Each job has one of them, so that a dataset has jobs of several kinds."""
GPU_COUNTS = {1: 0.4, 2: 0.1, 4: 0.1, 8: 0.4}
"""Shares of the jobs by the number of GPUs that they request, close to the measured workloads."""


@dataclass(frozen=True)
class TuningTask:
    """A dataset with its validation data, and the settings of jobs on it."""

    name: str
    samples: int
    batch_size: int
    accuracy: float

    def workload(
        self, model: str, learning_rate: float, sharing: bool, gpus: int, pipeline: bool
    ) -> TuningWorkload:
        """Return the workload of a job on this dataset."""
        iterations_per_epoch = -(-self.samples // self.batch_size)
        return TuningWorkload(
            model=model,
            dataset=Dataset(path=f"drawn/{self.name}.jsonl", samples=self.samples),
            validation_path=f"drawn/{self.name}-validation.jsonl",
            hyperparameters=TuningHyperparameters(batch_size=self.batch_size, learning_rate=learning_rate),
            target=TrainingTarget(accuracy=self.accuracy, most_iterations=MOST_EPOCHS * iterations_per_epoch),
            sharing=sharing,
            gpus=STAGES_PER_PIPELINE if pipeline else gpus,
            pipeline=pipeline,
        )


def draw_tasks(count: int, draws: random.Random) -> list[TuningTask]:
    """Draw `count` tasks, the smallest dataset first; sizes are log-uniform."""
    least, most = math.log(FEWEST_SAMPLES), math.log(MOST_SAMPLES)
    sizes = sorted(round(math.exp(draws.uniform(least, most))) for _ in range(count))
    return [
        TuningTask(
            f"task-{number:02d}",
            samples,
            draws.choice(BATCH_SIZES),
            round(draws.uniform(LEAST_TARGET, MOST_TARGET), 3),
        )
        for number, samples in enumerate(sizes, start=1)
    ]


def tasks_by_size(tasks: Sequence[TuningTask], gpu_s: Sequence[float]) -> list[TuningTask]:
    """Return a task for each job by the jobs' GPU times: longer jobs have larger datasets, and the datasets
    have equal numbers of jobs, one more or less."""
    ranks = sorted(range(len(gpu_s)), key=lambda job: (gpu_s[job], job))
    chosen = {job: tasks[rank * len(tasks) // len(gpu_s)] for rank, job in enumerate(ranks)}
    return [chosen[job] for job in range(len(gpu_s))]
