"""Real measurements of a backbone: the folder of `millrace bench merging --profiles`. It is not part of the
repository.

`read_profiles` reads all of one backbone on one type of GPU:

    learning_<model>.json.gz             curves, alone and merged        -> Profiles.curves
    <model>_<gpu>_placements.csv         seconds per step, by placement  -> Profiles.placements
    <model>_<gpu>_scalability.csv        the same; may be missing        -> Profiles.large_placements
    <model>_<gpu>_memory.csv             GiB by micro-batch              -> Profiles.memory
    <model>_<gpu>_context_switch.csv     a cold start                    -> Profiles.context_switch_s
    samples.csv                          task,samples; may be missing    -> Profiles.samples

Workloads are separate files: `read_workload`.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.merging.curves import Curve, CurveSetting, LearningCurves, as_fraction, read_learning_curves
from schemas.merging.reports import MeasuredStep

SAMPLES = {
    "wnli": 159,
    "rte": 623,
    "mrpc": 917,
    "stsb": 1_438,
    "sst2": 16_838,
    "qnli": 26_186,
    "qqp": 90_962,
    "mnli": 98_176,
    "snli": 137_344,
    "ag_news": 30_000,
    "Bingsu#Cat_and_Dog": 8_000,
    "frgfm#imagenette": 9_469,
    "Bingsu#Human_Action_Recognition": 12_600,
    "cifar100": 50_000,
    "fashion_mnist": 60_000,
    "mnist": 60_000,
    "food101": 75_750,
    "imagenet-split-0": 25_000,
    "imagenet-split-1": 75_000,
    "imagenet-split-2": 100_000,
}
"""Samples per epoch, from the README of the profiles; a folder's own `samples.csv` takes precedence."""

MOST_EPOCHS = 10
"""Epochs after which every run was stopped."""

T = TypeVar("T")


@dataclass(frozen=True)
class MeasuredPlacement:
    """A row of the placements: the time of a step on these GPUs of these nodes."""

    gpus_per_node: tuple[int, ...]
    micro_batch_size: int
    step_s: float
    """Duration of one pass without accumulation, the exchange included."""
    exchange_s: float

    @property
    def measured(self) -> MeasuredStep:
        return MeasuredStep(
            gpus=sum(self.gpus_per_node),
            nodes=len(self.gpus_per_node),
            micro_batch_size=self.micro_batch_size,
            accumulation_steps=1,
            step_s=self.step_s,
            exchange_s=self.exchange_s,
        )


@dataclass(frozen=True)
class MemoryProfile:
    """Memory of one GPU, in GiB."""

    gib_by_micro_batch: tuple[tuple[int, float], ...]
    """Ascending; at least two."""


@dataclass(frozen=True)
class WorkloadJob:
    """A job of a workload file."""

    name: str
    submitted_s: float
    task: str
    gpus: int
    """Requested GPUs."""
    batch_size: int
    """Batch of an optimizer step, over all GPUs."""
    setting: CurveSetting
    target: float
    """Target of the task's metric."""


@dataclass(frozen=True)
class Profiles:
    """Measurements of one backbone on one type of GPU."""

    model: str
    gpu: str
    curves: LearningCurves
    placements: tuple[MeasuredPlacement, ...]
    large_placements: tuple[MeasuredPlacement, ...]
    """Large allocations; the file lacks GPUs per node."""
    memory: MemoryProfile
    context_switch_s: float
    samples: Mapping[str, int]
    """Samples per epoch, of the tasks with a known number."""

    @property
    def steps(self) -> Iterator[MeasuredStep]:
        """Placements as rows of the lookup table."""
        return (placement.measured for placement in (*self.placements, *self.large_placements))

    def single(self, task: str, setting: CurveSetting) -> Curve:
        """Return the curve of a task alone.

        Raises:
            LookupError: it was not measured; the message names the measured settings.
        """
        measured = self.curves.single.get(task, {})
        if setting not in measured:
            there = ", ".join(f"{rate} with {steps} steps" for rate, steps in measured)
            raise LookupError(
                f"no curve of {task!r} alone at learning rate {setting.learning_rate} with "
                f"{setting.accumulation_steps} accumulation steps; measured: {there or 'none'}"
            )
        return measured[setting]


def read_profiles(folder: Path, model: str, gpu: str = "V100") -> Profiles:
    """Read one backbone on one type of GPU.

    Raises:
        FileNotFoundError: a necessary file is missing; the message names it.
        ValueError: a file has another format; the message names file, line and column.
    """
    prefix = f"{model}_{gpu}"
    scalability = folder / f"{prefix}_scalability.csv"
    large = _rows(scalability, _large_placement) if scalability.exists() else ()
    memory = tuple(sorted(_rows(folder / f"{prefix}_memory.csv", _memory)))
    if len({size for size, _ in memory}) != len(memory) or len(memory) < 2:
        raise ValueError(
            f"{folder / f'{prefix}_memory.csv'}: at least two rows, of different sizes, are needed"
        )
    switches = _rows(folder / f"{prefix}_context_switch.csv", lambda row: row.number("time_cost", 0))
    if len(switches) != 1:
        raise ValueError(
            f"{folder / f'{prefix}_context_switch.csv'}: one row is expected, not {len(switches)}"
        )
    own = folder / "samples.csv"
    samples = dict(_rows(own, lambda row: (row.text("task"), row.whole("samples")))) if own.exists() else {}
    return Profiles(
        model=model,
        gpu=gpu,
        curves=read_learning_curves(folder, model),
        placements=_rows(folder / f"{prefix}_placements.csv", _placement),
        large_placements=large,
        memory=MemoryProfile(memory),
        context_switch_s=switches[0],
        samples=SAMPLES | samples,
    )


def read_workload(path: Path) -> tuple[WorkloadJob, ...]:
    """Read a workload file, in the order of its rows.

    Raises:
        FileNotFoundError: it is missing.
        ValueError: it has another format; the message names line and column.
    """
    return _rows(path, _job)


class _CsvRow:
    """A line of a CSV file; its errors name file and line."""

    def __init__(self, path: Path, line: int, cells: Mapping[str, str | None]) -> None:
        self._at, self._cells = f"{path}, line {line}", cells

    def text(self, column: str) -> str:
        value = self._cells.get(column)
        if not value:
            raise ValueError(f"{self._at}: column `{column}` is missing or empty")
        return value

    def number(self, column: str, least: float) -> float:
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < least:
            raise ValueError(f"{self._at}: `{column}` is a number of at least {least:g}, not {text!r}")
        return value

    def whole(self, column: str, least: int = 1) -> int:
        value = self.number(column, least)
        if value != int(value):
            raise ValueError(f"{self._at}: `{column}` is a whole number, not {self.text(column)!r}")
        return int(value)

    def gpus_per_node(self, column: str) -> tuple[int, ...]:
        text = self.text(column)
        if not text.isdecimal() or "0" in text:
            raise ValueError(f"{self._at}: `{column}` has a digit per node, its GPUs, not {text!r}")
        return tuple(map(int, text))

    def fault(self, text: str) -> ValueError:
        return ValueError(f"{self._at}: {text}")


def _rows(path: Path, build: Callable[[_CsvRow], T]) -> tuple[T, ...]:
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing")
    with path.open(newline="", encoding="utf-8") as file:
        rows = tuple(build(_CsvRow(path, line, cells)) for line, cells in enumerate(csv.DictReader(file), 2))
    if not rows:
        raise ValueError(f"{path} has no rows")
    return rows


def _placement(row: _CsvRow) -> MeasuredPlacement:
    return _step(row, row.gpus_per_node("placement"))


def _large_placement(row: _CsvRow) -> MeasuredPlacement:
    nodes, gpus = row.whole("num_nodes"), row.whole("num_replicas")
    if gpus < nodes:
        raise row.fault(f"{gpus} GPUs are fewer than the {nodes} nodes that they are on")
    # The file lacks the GPUs per node, so they are distributed evenly.
    return _step(row, tuple(gpus // nodes + (node < gpus % nodes) for node in range(nodes)))


def _step(row: _CsvRow, gpus_per_node: tuple[int, ...]) -> MeasuredPlacement:
    step_s, exchange_s = row.number("step_time", 1e-9), row.number("sync_time", 0)
    if exchange_s > step_s:
        raise row.fault(
            f"`sync_time` {exchange_s:g} is a part of `step_time` {step_s:g} and cannot be longer"
        )
    return MeasuredPlacement(gpus_per_node, row.whole("local_bsz"), step_s, exchange_s)


def _memory(row: _CsvRow) -> tuple[int, float]:
    return row.whole("local_bsz"), row.number("gpu_memory", 0)


def _job(row: _CsvRow) -> WorkloadJob:
    _, at, task = row.text("application").partition("@")
    if not at or not task:
        raise row.fault(f"`application` is `model@task`, not {row.text('application')!r}")
    return WorkloadJob(
        name=row.text("name"),
        submitted_s=row.number("submission_time", 0),
        task=task,
        gpus=row.whole("num_gpus"),
        batch_size=row.whole("target_batch_size"),
        setting=CurveSetting(row.text("target_lr"), row.whole("target_gradient_steps")),
        target=as_fraction(row.number("target_metric", -math.inf)),
    )
