"""Measurement of the machine at hand: steps of a LoRA task by micro-batch, by the runner's own code."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal, Self

import psutil
import torch
from transformers.utils.logging import disable_progress_bar

from executors.devices import Device, use_device
from executors.lora.base_model import load_base
from executors.lora.dataset import Cursor, DatasetRoot, next_indices
from executors.lora.engine import BYTES_PER_GIB, FusedEngine, keep_freed_memory
from executors.lora.shared_base import SharedBase
from executors.lora.slots.runs import task_of
from executors.lora.slots.steps import FusedSteps
from executors.node.process import SystemClock
from executors.node.runner import Clock
from schemas.base import Record
from schemas.lora import Dataset, LoraHyperparameters
from schemas.lora_commands import RunOrder
from schemas.profiles import MeasuredSteps, ProfilePoint, sequence_class

MOST_STEPS = 32
LEAST_STEPS = 3
"""Measured steps of a micro-batch, at most and at least; fewer only if the time is over."""
LARGEST_MICRO_BATCH = 4_096
_PART_OF_TIME = 8
"""A micro-batch with enough steps ends after this part of the whole time."""
_SAMPLED_RECORDS = 512
_QUANTILE = 0.95
_HELD_PART = 0.5
_JOB = "profile"

End = Literal["time", "memory", "largest"]
"""Reason of the end of a measurement: the next micro-batch would take too long, needs too much memory, or is
larger than the largest."""


class ProfileError(ValueError):
    """Nothing could be measured. The message names the cause."""


@dataclass(frozen=True)
class MeasuredProfile:
    """Measured points of one shape, ascending by micro-batch."""

    points: tuple[ProfilePoint, ...]
    losses: tuple[float, ...]
    """Loss of each step of the largest measured micro-batch."""
    end: End


@dataclass(frozen=True)
class Bounds:
    """Bounds of a measurement."""

    most_s: float
    """Time after which no step begins, in seconds."""
    most_gib: float
    """Memory of a step that none may be expected to exceed, besides the base model."""
    sizes: tuple[int, ...]
    """Micro-batches to measure, in ascending order."""

    @classmethod
    def doubling(cls, most_s: float, most_gib: float, largest: int) -> Self:
        """Return bounds with the powers of two up to a largest micro-batch."""
        return cls(most_s, most_gib, tuple(2**power for power in range(largest.bit_length())))


class MachineSettings(Record):
    """Model, data and device of a measurement, with its bounds."""

    model: Path | None
    """Hugging Face directory of the base model; None for the default model."""
    dataset: Path
    """JSONL file."""
    device: Device = "cpu"
    threads: int = 1
    gpu_type: str | None = None
    """Name of the device in the points; None for its own."""
    most_s: float = 60.0
    most_gib: float | None = None
    """See `Bounds`; None for half of the memory that is free with the model loaded."""
    largest: int = LARGEST_MICRO_BATCH


@dataclass(frozen=True)
class MachineProfile(MeasuredProfile):
    """Measured points of a machine, and the shape that they are of."""

    shape: LoraHyperparameters
    key: dict[str, Any]
    """Fields of its `ProfileKey`; the base model is named by its directory."""


def profile_machine(
    settings: MachineSettings, shape: LoraHyperparameters, *, finds_length: bool
) -> MachineProfile:
    """Load a base model as the runner does, and measure a shape on this machine.

    Args:
        settings: model, data, device and bounds.
        shape: hyperparameters of the task.
        finds_length: whether the sequence length is that of the data, in place of the shape's.

    Raises:
        ProfileError: see `profile`.
        BaseModelError: see `load_base`.
        ValueError: data or shape are unfit.
        OSError: a file cannot be read.
        RuntimeError: torch has no such device, or the model does not fit on it.
    """
    if settings.device != "cpu" and not torch.cuda.is_available():
        raise ProfileError(f"torch sees no CUDA device on this machine: {settings.device} cannot be measured")
    keep_freed_memory()
    disable_progress_bar()
    torch.set_num_threads(settings.threads)
    datasets = DatasetRoot(settings.dataset.parent)
    base = load_base(settings.model, use_device(settings.device, 0))
    name = settings.dataset.name
    if finds_length:
        length = usual_sequence_length(base, datasets, name)
        shape = shape.model_copy(update={"sequence_length": length})
    engine = FusedEngine(base, datasets)
    most_gib = settings.most_gib or _HELD_PART * _free_bytes(base.model.device) / BYTES_PER_GIB
    found = profile(
        engine,
        SystemClock(),
        Dataset(path=name, samples=1),
        shape,
        settings.gpu_type or _device_name(base.model.device),
        Bounds.doubling(settings.most_s, most_gib, settings.largest),
    )
    key = {
        "base_model": _identifier(base.directory.resolve().name),
        "sequence_tokens": sequence_class(shape.sequence_length),
        "rank": shape.rank,
        "target_modules": shape.target_modules,
        "precision": engine.precision,
    }
    return MachineProfile(found.points, found.losses, found.end, shape, key)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def _device_name(device: torch.device) -> str:
    return _identifier(torch.cuda.get_device_name(device) if device.type == "cuda" else device.type)


def _identifier(name: str) -> str:
    """Return a name as an identifier of a zone's file."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("._-")[:128] or "unnamed"


def usual_sequence_length(base: SharedBase, datasets: DatasetRoot, name: str) -> int:
    """Return the class of the length in tokens that 95 % of a sample of the records do not exceed, as long
    as the base model takes.

    Raises:
        DatasetError: the dataset is unfit.
    """
    longest = base.longest_sequence_tokens
    with datasets.open(name, form=base.objective.records) as dataset:
        chosen, _ = next_indices(len(dataset), 0, Cursor(), min(len(dataset), _SAMPLED_RECORDS))
        lengths = sorted(len(dataset.tokenized(index, base.tokenizer, longest).token_ids) for index in chosen)
    quantile = lengths[math.ceil(_QUANTILE * len(lengths)) - 1]
    return max(min(sequence_class(quantile), longest), 2)


def profile(
    engine: FusedEngine,
    clock: Clock,
    dataset: Dataset,
    shape: LoraHyperparameters,
    gpu_type: str,
    bounds: Bounds,
) -> MeasuredProfile:
    """Measure steps of a task by micro-batch, within bounds.

    Args:
        engine: engine without tasks.
        clock: clock of the steps.
        dataset: data of the task.
        shape: hyperparameters of the task; their micro-batch is ignored.
        gpu_type: name of the device in the points.
        bounds: micro-batches, and bounds of time and memory.

    Raises:
        ProfileError: no step could be measured in time.
        DatasetError: the dataset is unfit.
        ValueError: the shape does not fit the base model.
    """
    measurement = _Measurement(engine, clock, dataset, shape, gpu_type, bounds)
    points = list(measurement.points())
    if not points:
        raise ProfileError(
            f"no step was measured within {bounds.most_s:g} s and {bounds.most_gib:.3g} GiB: allow more of "
            "both, or shorter sequences"
        )
    return MeasuredProfile(tuple(points), tuple(measurement.losses), measurement.end)


class _Measurement:
    def __init__(
        self,
        engine: FusedEngine,
        clock: Clock,
        dataset: Dataset,
        shape: LoraHyperparameters,
        gpu_type: str,
        bounds: Bounds,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._dataset = dataset
        self._shape = shape
        self._gpu_type = gpu_type
        self._bounds = bounds
        self._end_s = clock.time_s() + bounds.most_s
        self.losses: list[float] = []
        self.end: End = "largest"

    def points(self) -> Iterator[ProfilePoint]:
        for size, following in zip_longest(self._bounds.sizes, self._bounds.sizes[1:]):
            try:
                point = self._measure(size)
            except torch.OutOfMemoryError:
                self.end = "memory"
                return
            if point is None:
                self.end = "time"
                return
            yield point
            if following is None:
                return
            # Time and memory of a step grow at most in proportion to its size.
            growth = following / size
            if growth * (point.memory_gib or 0.0) > self._bounds.most_gib:
                self.end = "memory"
                return
            if self._clock.time_s() + (LEAST_STEPS + 1) * growth * point.step_s > self._end_s:
                self.end = "time"
                return

    def _measure(self, size: int) -> ProfilePoint | None:
        """Return the point of a micro-batch; None without a measured step in time.

        Raises:
            torch.OutOfMemoryError: it is too large for the device.
        """
        order = self._order(size)
        self._engine.attach(task_of(order))
        try:
            return self._measured(order)
        finally:
            self._engine.discard(_JOB)

    def _measured(self, order: RunOrder) -> ProfilePoint | None:
        steps = FusedSteps(self._engine, self._clock, [order])
        found: list[MeasuredSteps] = []
        loaded_s: list[float] = []
        losses: list[float] = []
        begun_s = self._clock.time_s()
        while len(found) < MOST_STEPS:
            before_s = steps.node_s[_JOB]
            outcome = steps.step([_JOB])[_JOB]
            if isinstance(outcome, Exception):
                raise outcome
            losses.append(outcome)
            measured = steps.pop_measured(_JOB)
            if measured is not None:
                found.append(measured)
                loaded_s.append(max(steps.node_s[_JOB] - before_s - measured.step_s, 0.0))
            now_s = self._clock.time_s()
            part_is_over = now_s - begun_s > self._bounds.most_s / _PART_OF_TIME
            if now_s >= self._end_s or (part_is_over and len(found) >= LEAST_STEPS):
                break
        if not found:
            return None
        self.losses = losses
        return ProfilePoint(
            gpu_type=self._gpu_type,
            micro_batch_size=order.hyperparameters.batch_size,
            step_s=median(each.step_s for each in found),
            memory_gib=steps.memory_gib.get(_JOB),
            loader_s=median(loaded_s),
            tokens_per_sample=fmean(each.tokens_per_sample for each in found),
            steps=len(found),
        )

    def _order(self, size: int) -> RunOrder:
        samples = size * (MOST_STEPS + 2)
        return RunOrder(
            run_id=_JOB,
            job_id=_JOB,
            user=_JOB,
            work_samples=samples,
            quota_samples=samples,
            resume_samples=0,
            dataset=self._dataset,
            hyperparameters=self._shape.model_copy(update={"batch_size": size}),
        )
