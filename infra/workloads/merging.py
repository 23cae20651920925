"""Fine-tuning jobs that may be merged, and the datasets of them, drawn for simulations."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from infra.workloads.arrivals import arrivals_of
from infra.workloads.drawing import Drawing, DrawingOptions
from infra.workloads.timed import TimedEvent, WorkloadError, check_time
from schemas.base import Event
from schemas.cells import Zone
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset
from schemas.merging.settings import STAGES_PER_PIPELINE
from schemas.merging.workload import MergingTerms, TrainingTarget, TuningHyperparameters, TuningWorkload

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
class TuningDataset:
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


def draw_datasets(count: int, rng: random.Random) -> list[TuningDataset]:
    """Draw `count` datasets, the smallest first; sizes are log-uniform."""
    least, most = math.log(FEWEST_SAMPLES), math.log(MOST_SAMPLES)
    sizes = sorted(round(math.exp(rng.uniform(least, most))) for _ in range(count))
    return [
        TuningDataset(
            f"task-{number:02d}",
            samples,
            rng.choice(BATCH_SIZES),
            round(rng.uniform(LEAST_TARGET, MOST_TARGET), 3),
        )
        for number, samples in enumerate(sizes, start=1)
    ]


def datasets_by_size(datasets: Sequence[TuningDataset], gpu_s: Sequence[float]) -> list[TuningDataset]:
    """Return a dataset for each job by the jobs' GPU times: longer jobs have larger datasets, and these
    have equal numbers of jobs, one more or less."""
    ranks = sorted(range(len(gpu_s)), key=lambda job: (gpu_s[job], job))
    chosen = {job: datasets[rank * len(datasets) // len(gpu_s)] for rank, job in enumerate(ranks)}
    return [chosen[job] for job in range(len(gpu_s))]


DEFAULT_JOBS = 160
"""Number of jobs that, with the default options and span, request about 0.8 of the GPU time of 32 GPUs, each
alone on one."""
DEFAULT_SPAN_S = 3 * 3_600.0

_Share = Annotated[float, Field(ge=0, le=1)]


class MergingOptions(DrawingOptions):
    """Datasets and shares of the kinds of drawn jobs."""

    datasets: Annotated[int, Field(ge=1, le=1_000)] = 12
    sharing_share: _Share = 0.9
    """Share of jobs that may be merged with others."""
    pipeline_share: _Share = 0.0
    """Share of jobs that are cut into stages over GPUs."""


def draw(drawing: Drawing) -> list[TimedEvent[Event]]:
    """Draw jobs that arrive in bursts like those of a real cluster, or as a trace has them. The work of a job
    depends on its dataset; only the order of a trace's GPU times is kept.

    Raises:
        WorkloadError: an option is invalid, the trace is too short, or a zone cannot run the pipelines.
        TraceError: the trace is invalid.
    """
    options = drawing.options_as(MergingOptions)
    if options.pipeline_share > 0:
        _check_pipelines(drawing.zones)
    jobs = DEFAULT_JOBS if drawing.jobs is None else drawing.jobs
    arrivals = arrivals_of(
        drawing.trace, jobs, DEFAULT_SPAN_S if drawing.span_s is None else drawing.span_s, drawing.seed
    )
    check_time(drawing.cell.epoch_s + arrivals[-1].offset_s)
    datasets = draw_datasets(options.datasets, random.Random(f"{drawing.seed}/tasks"))
    rng = random.Random(f"{drawing.seed}/jobs")
    zones, weights = drawing.zones, [sum(zone.gpus_by_node.values()) for zone in drawing.zones]
    drawn: list[TimedEvent[Event]] = []
    for number, (arrival, dataset) in enumerate(
        zip(arrivals, datasets_by_size(datasets, [arrival.gpu_s for arrival in arrivals]), strict=True)
    ):
        (zone,) = rng.choices(zones, weights)
        (gpus,) = rng.choices(list(GPU_COUNTS), list(GPU_COUNTS.values()))
        workload = dataset.workload(
            zone.base_model,
            rng.choice(LEARNING_RATES),
            rng.random() < options.sharing_share,
            gpus,
            rng.random() < options.pipeline_share,
        )
        submission = JobSubmitted(
            cell=drawing.cell.cell,
            job_id=f"{zone.id}-{drawing.seed}-{number:04d}",
            user=arrival.user,
            zone=zone.id,
            workload=workload,
            terms=MergingTerms(),
        )
        drawn.append(TimedEvent(drawing.cell.epoch_s + arrival.offset_s, submission))
    return drawn


def _check_pipelines(zones: Sequence[Zone]) -> None:
    for zone in zones:
        most = max(gpu.gpus for gpu in zone.gpu_types)
        if most < STAGES_PER_PIPELINE:
            raise WorkloadError(
                f"zone {zone.id} has nodes of {most} GPUs, and a pipeline-parallel job needs "
                f"{STAGES_PER_PIPELINE} on one: leave out --draw pipeline_share"
            )
