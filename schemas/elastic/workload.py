"""The workload of a data-parallel job, and its terms."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.base import PositiveSamples, Record, RelativePath, SamplesPerSecond
from schemas.kind import Terms, Workload
from schemas.lora import Dataset, LoraHyperparameters

MAX_WORKERS = 1_024
MAX_GPUS_PER_WORKER = 64
MAX_SPEED_PER_WORKER = 2.0
"""Most speed of w workers, over w times that of one. Curves are rarely superlinear, and then slightly."""
MAX_RUNNING_YEARS = 10
"""Longest duration of a job with its base demand, and so with any workers that it may have."""
YEAR_S = 365 * 86_400
_UNREADABLE_YEARS = 1e6

MAX_BATCH = 1_048_576

Workers = Annotated[int, Field(ge=1, le=MAX_WORKERS)]
LearningRate = Annotated[float, Field(ge=1e-12, le=10)]


class TrainingHyperparameters(Record):
    """Hyperparameters of the training, for any number of workers. The global batch only changes if the job is
    tuned."""

    global_batch_size: Annotated[int, Field(ge=1, le=MAX_BATCH)] = 32
    """Sequences in a step of all workers together."""
    micro_batch_size: Annotated[int, Field(ge=1, le=4_096)] = 8
    """Most sequences that one worker takes at a time: the rest of its share is accumulated."""
    sequence_length: Annotated[int, Field(ge=2, le=1_048_576)] = 64
    """Longest sequence in tokens; longer records are cut."""
    learning_rate: LearningRate = 1e-4
    """AdamW's step size."""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.0
    """AdamW's decoupled weight decay."""
    max_gradient_norm: Annotated[float, Field(ge=1e-9, le=1e6)] = 1.0
    """The gradient is scaled down to this L2 norm."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of initial adapter weights, data order and dropout masks."""


class TuningBounds(Record):
    """Bounds within which a job agent tunes the batch and the learning rate, whenever workers change."""

    least_global_batch_size: Annotated[int, Field(ge=1, le=MAX_BATCH)]
    most_global_batch_size: Annotated[int, Field(ge=1, le=MAX_BATCH)]
    most_learning_rate: LearningRate
    """Highest learning rate. A larger batch raises the learning rate, at most to this."""
    least_learning_rate: Annotated[LearningRate | None, Field(exclude_if=lambda rate: rate is None)] = None
    """Lowest learning rate. A smaller batch lowers the learning rate, at least to this; None for no bound."""


class ElasticWorkload(Workload):
    """A number of samples of a dataset to train a model on, on `min_workers` to `max_workers` workers.

    A job of a single size is inelastic: `min_workers` equals `max_workers` (thesis, section 3.7.1).
    """

    kind: Literal["elastic"] = "elastic"
    work_samples: PositiveSamples
    model: RelativePath
    """A local Hugging Face model directory, below the executors' root for models."""
    dataset: Dataset
    adapter: LoraHyperparameters | None = None
    """The shape of a LoRA adapter to train; None trains all weights. Of its fields the rank, alpha, dropout
    and target modules count; the rest is in `hyperparameters`."""
    hyperparameters: TrainingHyperparameters = TrainingHyperparameters()
    # Omitted if it is the default, so that jobs submitted before it was added keep their bytes.
    tuning: Annotated[TuningBounds | None, Field(exclude_if=lambda bounds: bounds is None)] = None
    """Bounds of a job agent, which measures the gradient noise; None to train with `hyperparameters`."""
    min_workers: Workers = 1
    """Base demand (w_min): the job never runs on fewer workers."""
    max_workers: Workers = 1
    """Most workers (w_max); those beyond the base demand are its flexible demand."""
    gpus_per_worker: Annotated[int, Field(ge=1, le=MAX_GPUS_PER_WORKER)] = 1
    """GPUs of one worker, all on one server."""
    samples_per_s: SamplesPerSecond | None = None
    """Speed of one worker on the reference GPU, by a profile of the job. With `min_workers`, the job takes
    ten years at most. None if its first workers are to be measured. Measured steps of jobs of its kind count
    before it."""
    speedup: Annotated[
        tuple[Annotated[float, Field(ge=1, le=MAX_SPEED_PER_WORKER * MAX_WORKERS)], ...],
        Field(max_length=MAX_WORKERS),
    ] = ()
    """Throughput of 1, 2, ... `max_workers` workers over that of one: it begins with 1, never falls, and is
    twice the number of workers at most. Empty for a linear curve, until it is measured."""
    keeps_checkpoints: bool = True
    """Whether it continues after a preemption from its progress; otherwise it starts over."""
    fungible: bool = False
    """Whether it may run on another GPU type than the reference one, all workers on the same."""
    heterogeneous: bool = False
    """Whether it may run on several GPU types at a time."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min_workers > self.max_workers:
            raise ValueError(f"min_workers {self.min_workers} is above max_workers {self.max_workers}")
        if self.speedup and len(self.speedup) != self.max_workers:
            raise ValueError(
                f"speedup has {len(self.speedup)} values, expected one for each of {self.max_workers} workers"
            )
        self._check_curve()
        if self.hyperparameters.global_batch_size < self.max_workers:
            raise ValueError(
                f"a global batch of {self.hyperparameters.global_batch_size} has no sample for each of "
                f"{self.max_workers} workers"
            )
        self._check_tuning()
        self._check_running_time()
        return self

    def _check_curve(self) -> None:
        if self.speedup and self.speedup[0] != 1:
            raise ValueError(
                f"speedup begins with {self.speedup[0]:g}: give throughputs over that of one worker, so 1 "
                "first"
            )
        if self.speedup and self.samples_per_s is None:
            raise ValueError(
                "speedup is relative to samples_per_s: give both, or neither to have it measured"
            )
        if any(more < fewer for fewer, more in zip(self.speedup, self.speedup[1:], strict=False)):
            raise ValueError("speedup falls: give the throughput of 1, 2, ... workers, which never falls")
        for workers, speed in enumerate(self.speedup, start=1):
            if speed > MAX_SPEED_PER_WORKER * workers:
                raise ValueError(
                    f"speedup is {speed:g} with {workers} workers, at most {MAX_SPEED_PER_WORKER:g} for each "
                    "of them: give the throughput over that of one worker"
                )

    def _check_tuning(self) -> None:
        bounds, own = self.tuning, self.hyperparameters
        if bounds is None:
            return
        least, most = bounds.least_global_batch_size, bounds.most_global_batch_size
        if not least <= own.global_batch_size <= most:
            raise ValueError(
                f"tuning allows batches of {least} to {most}, without the job's own global_batch_size "
                f"{own.global_batch_size}: it is the first one"
            )
        if least < self.max_workers:
            raise ValueError(
                f"least_global_batch_size {least} has no sample for each of {self.max_workers} workers"
            )
        if bounds.most_learning_rate < own.learning_rate:
            raise ValueError(
                f"most_learning_rate {bounds.most_learning_rate:g} is below the job's own learning_rate "
                f"{own.learning_rate:g}"
            )
        if bounds.least_learning_rate is not None and bounds.least_learning_rate > own.learning_rate:
            raise ValueError(
                f"least_learning_rate {bounds.least_learning_rate:g} is above the job's own learning_rate "
                f"{own.learning_rate:g}"
            )

    def _check_running_time(self) -> None:
        if self.samples_per_s is None:
            return
        at_base = self.speedup[self.min_workers - 1] if self.speedup else float(self.min_workers)
        years = self.work_samples / self.samples_per_s / at_base / YEAR_S
        if years > MAX_RUNNING_YEARS:
            long = f"{years:,.1f}" if years < _UNREADABLE_YEARS else "more than a million"
            raise ValueError(
                f"{self.work_samples} samples at {self.samples_per_s:g} samples/s with one worker take "
                f"{long} years with min_workers {self.min_workers}, at most {MAX_RUNNING_YEARS}: check "
                "samples_per_s, or give the job more min_workers or less work"
            )

    @property
    def total_samples(self) -> int:
        """Number of samples of the whole work."""
        return self.work_samples


class ElasticTerms(Terms):
    """No bid and no deadline: the job waits until there is room."""

    kind: Literal["elastic"] = "elastic"
