"""The datasets that drawn jobs are fine-tuned on, and what a job asks for."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.lora import Dataset
from schemas.merging.settings import STAGES_PER_PIPELINE
from schemas.merging.workload import Target, TuningHyperparameters, TuningWorkload

FEWEST_SAMPLES, MOST_SAMPLES = 500, 100_000
"""Of a dataset. Those of the measured profiles have 159 to 137,344."""
BATCH_SIZES = (8, 16, 32)
LEAST_TARGET, MOST_TARGET = 0.6, 0.95
MOST_EPOCHS = 10
"""Where the runs of the measured profiles stop."""
LEARNING_RATES = (1e-4, 1e-3)
"""Each job tries one of them, so that a dataset has jobs of several kinds."""
GPUS_ASKED = {1: 0.4, 2: 0.1, 4: 0.1, 8: 0.4}
"""Shares of the jobs by the number of GPUs that they ask for, about those of the measured workloads."""


@dataclass(frozen=True)
class DrawnTask:
    """A dataset with its validation data, and how jobs are tuned on it."""

    name: str
    samples: int
    batch_size: int
    accuracy: float

    def workload(
        self, model: str, learning_rate: float, sharing: bool, gpus: int, pipeline: bool
    ) -> TuningWorkload:
        """A job on it."""
        iterations_per_epoch = -(-self.samples // self.batch_size)
        return TuningWorkload(
            model=model,
            dataset=Dataset(path=f"drawn/{self.name}.jsonl", samples=self.samples),
            validation_path=f"drawn/{self.name}-validation.jsonl",
            hyperparameters=TuningHyperparameters(batch_size=self.batch_size, learning_rate=learning_rate),
            target=Target(accuracy=self.accuracy, most_iterations=MOST_EPOCHS * iterations_per_epoch),
            sharing=sharing,
            gpus=STAGES_PER_PIPELINE if pipeline else gpus,
            pipeline=pipeline,
        )


def draw_tasks(count: int, draws: random.Random) -> list[DrawnTask]:
    """So many tasks, the smallest dataset first; sizes are log-uniform."""
    least, most = math.log(FEWEST_SAMPLES), math.log(MOST_SAMPLES)
    sizes = sorted(round(math.exp(draws.uniform(least, most))) for _ in range(count))
    return [
        DrawnTask(
            f"task-{number:02d}",
            samples,
            draws.choice(BATCH_SIZES),
            round(draws.uniform(LEAST_TARGET, MOST_TARGET), 3),
        )
        for number, samples in enumerate(sizes, start=1)
    ]


def tasks_by_size(tasks: Sequence[DrawnTask], gpu_s: Sequence[float]) -> list[DrawnTask]:
    """A task for each job, given the jobs' GPU times: longer jobs have larger datasets, and every dataset has
    as many jobs as the others, one more or less."""
    ranks = sorted(range(len(gpu_s)), key=lambda job: (gpu_s[job], job))
    chosen = {job: tasks[rank * len(tasks) // len(gpu_s)] for rank, job in enumerate(ranks)}
    return [chosen[job] for job in range(len(gpu_s))]
