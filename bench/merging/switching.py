"""Idle time of a GPU between two tasks: after a cold start, a switch, and a prewarmed switch."""

import json
import logging
import random
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from statistics import median
from tempfile import TemporaryDirectory

import torch

from bench.figures import Measurement, Result, Table, Value
from executors.devices import Device
from executors.lora.base_model import load_base
from executors.lora.dataset import DatasetRoot
from executors.lora.default_base import default_base_directory
from executors.node.process import SystemClock
from executors.node.room import DiskSpace
from executors.node.runner import RunnerContext
from executors.node.settings import ExecutorSettings
from executors.processes.forked_process import warm_up
from executors.tuner import FineTuning
from executors.tuner.data import Loader, Loaders, SharedTokenizer
from executors.tuner.opening import adapter_for, open_job
from executors.tuner.runner import TunerRunner
from executors.tuner.settings import TunerSettings
from executors.tuner.training import Sample, Trainer
from schemas.fleet import FleetEvent, RunFailed
from schemas.interpreters import python_command
from schemas.lora import Dataset
from schemas.merging.commands import JobOrder, LoaderPrewarmed, TaskAssigned, TaskMember, TaskReleased
from schemas.merging.reports import TaskEvaluated
from schemas.merging.workload import TrainingTarget, TuningHyperparameters, TuningWorkload

_MODEL = "base"
NODE = "n1"
_WORDS = ("def", "class", "return", "self", "import", "value", "error", "raise", "range", "lambda")
_TIMEOUT_S = 120.0
_SMALL_RECORDS = 256
_LARGE_RECORDS = 150_000
"""Number of records that take about a second to open, check and count."""
_POLL_S = 0.005
_AHEAD_S = 3.0
"""Lead time of prewarming; a cell orders it 30 s ahead."""


@dataclass(frozen=True)
class Switch:
    """One switch, as reported by a worker."""

    gap_s: float
    """Time from the end of a task's last step to the start of the next task's first."""
    step_s: float
    """Time of that first step."""
    until_first_step_s: float
    """Time from the command to switch to the end of that step, the last step of the previous task
    included."""


def devices() -> tuple[Device, ...]:
    """Return the devices of this machine."""
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def measure_switching(quick: bool, seed: int, device: Device = "cpu") -> Result:
    """Measure the switch of tasks on the default base.

    `switch_speedup` is the ratio of cold start to switch, until the first step ends. `prewarm_hidden_pct` is
    the share of a loader's preparation that no longer delays the first step.
    """
    rounds = 2 if quick else 10
    cold_rounds = 1 if quick else 10  # each takes as long as all other rounds of the quick form
    with TemporaryDirectory() as name:
        folder = Path(name)
        base = default_base_directory()
        _write_dataset(folder / "small.jsonl", _SMALL_RECORDS, seed)
        _write_dataset(folder / "large-0.jsonl", _LARGE_RECORDS, seed)
        for number in range(1, 2 * rounds):  # cached properties of a file are stored by its inode
            copyfile(folder / "large-0.jsonl", folder / f"large-{number}.jsonl")
        settings = TunerSettings(base_model_dir=base, dataset_root=folder, device=device, gpus=1)
        cold_s = [_cold_start_s(settings) for _ in range(cold_rounds)]
        with_worker = _Worker(folder, settings)
        try:
            switches = [with_worker.switch("small.jsonl") for _ in range(rounds)]
            plain = [with_worker.switch(f"large-{number}.jsonl") for number in range(rounds)]
            prewarmed = [
                with_worker.switch(f"large-{number}.jsonl", prewarm=True)
                for number in range(rounds, 2 * rounds)
            ]
        finally:
            with_worker.close()
        prepared_s = _preparation_s(settings, f"large-{rounds}.jsonl")
    return _result(device, cold_s, switches, plain, prewarmed, prepared_s)


def _result(
    device: Device,
    cold_s: list[float],
    switches: list[Switch],
    plain: list[Switch],
    prewarmed: list[Switch],
    prepared_s: float,
) -> Result:
    warm_s = [each.until_first_step_s for each in switches]
    without_s = median(each.until_first_step_s for each in plain)
    with_s = median(each.until_first_step_s for each in prewarmed)
    hidden = min(max((without_s - with_s) / prepared_s, 0.0), 1.0)
    speedup = Measurement(
        name="switch_speedup",
        value=median(cold_s) / median(warm_s),
        note=f"{device}, default base: {median(cold_s):.2f} s from the start of a process to the end of its "
        f"first step, {1e3 * median(warm_s):.1f} ms from the command to switch to the same, the "
        f"gap between two steps is {1e3 * median(each.gap_s for each in switches):.1f} ms; medians",
        runs=len(cold_s),
    )
    prewarm = Measurement(
        name="prewarm_hidden_pct",
        value=100.0 * hidden,
        note=f"{device}: {_LARGE_RECORDS:,} records take {prepared_s:.2f} s to prepare; from the command to "
        f"switch to the end of the first step it is {without_s:.3f} s without and {with_s:.3f} s with it "
        f"prewarmed; medians",
        runs=len(prewarmed),
    )
    seen = {"cold start": cold_s} | {
        kind: [each.until_first_step_s for each in some]
        for kind, some in (("switch", switches), ("large data", plain), ("large data, prewarmed", prewarmed))
    }
    rows: list[dict[str, Value]] = [
        {"kind": kind, "until_first_step_s": each_s} for kind, some_s in seen.items() for each_s in some_s
    ]
    return Result((speedup, prewarm), (Table("switches", rows),))


def first_step(base_directory: str, dataset_root: str, dataset: str, device: Device) -> None:
    """Take the first training step of a run without the executor."""
    settings = TunerSettings(
        base_model_dir=Path(base_directory), dataset_root=Path(dataset_root), device=device
    )
    torch.set_num_threads(settings.threads)
    base = load_base(settings.base_model_dir, device)
    root, tokenizer = DatasetRoot(settings.dataset_root), SharedTokenizer(base.tokenizer)
    job = open_job(_order(0, dataset), base, Loaders(root, tokenizer, settings))
    adapter = adapter_for("normal", [job], None, torch.device(device))
    trainer = Trainer(job.base, adapter, torch.device(device), job.batch_size)
    records = job.loader.stream.indices(0, job.batch_size)
    batch = [Sample(place, 0, job.loader.training[record]) for place, record in enumerate(records)]
    trainer.step(batch, 0, 1, (), lambda _: None)


def _order(number: int, dataset: str) -> JobOrder:
    return JobOrder(
        run_id=f"j{number}/1",
        job_id=f"j{number}",
        user="u",
        workload=_workload(dataset),
        resume_iterations=0,
    )


def _cold_start_s(settings: TunerSettings) -> float:
    arguments = [str(settings.base_model_dir), str(settings.dataset_root), "small.jsonl", settings.device]
    call = f"from bench.merging.switching import first_step; first_step(*{arguments!r})"
    started_s = time.monotonic()
    subprocess.run(python_command("-c", call), check=True, capture_output=True)
    return time.monotonic() - started_s


def _preparation_s(settings: TunerSettings, dataset: str) -> float:
    base = load_base(settings.base_model_dir)
    root, tokenizer = DatasetRoot(settings.dataset_root), SharedTokenizer(base.tokenizer)
    loader = Loader(_workload(dataset), root, tokenizer, settings)
    loader.close()
    return loader.prepared_s


class _LoggedSeconds(logging.Handler):
    """Collects the last arguments of log records with a given beginning, in `seen`."""

    def __init__(self, logger: str, begin: str, count: int) -> None:
        super().__init__()
        self.seen: list[tuple[float, ...]] = []
        self._begin, self._count = begin, count
        self._logger = logging.getLogger(logger)
        self._level = self._logger.level
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the arguments of a record with the beginning."""
        if record.msg.startswith(self._begin) and isinstance(record.args, tuple):
            self.seen.append(tuple(float(str(each)) for each in record.args[-self._count :]))

    def close(self) -> None:
        """Restore the logger."""
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
        super().close()


class _Worker:
    """A node with one worker, which always trains a task."""

    def __init__(self, folder: Path, settings: TunerSettings) -> None:
        self._reports: list[FleetEvent] = []
        self._log = _LoggedSeconds("executors.tuner.runner", "task switched", 2)
        warm_up(*FineTuning.MODULES)
        context = _node_context(folder, self._reports)
        self._runner = TunerRunner.started(context, settings, 1)
        self._tasks = 0
        self._begin("small.jsonl")
        self._until(lambda: bool(self._evaluations()))

    def switch(self, dataset: str, *, prewarm: bool = False) -> Switch:
        """End the present task and begin one on this data."""
        if prewarm:
            order = _order(self._tasks + 1, dataset)
            starts_s = time.time() + _AHEAD_S
            self._runner.apply(LoaderPrewarmed(zone="z", node=NODE, order=order, starts_s=starts_s))
            ready_s = time.monotonic() + _AHEAD_S
            self._until(lambda: time.monotonic() > ready_s)
        seen = len(self._log.seen)
        commanded_s = time.monotonic()
        ended = self._tasks
        self._begin(dataset)
        self._runner.apply(
            TaskReleased(
                zone="z",
                node=NODE,
                task_id=f"t{ended}",
                generation=1,
                job_ids=(f"j{ended}",),
                reason="preempted",
            )
        )
        self._until(lambda: len(self._log.seen) > seen)
        gap_s, step_s = self._log.seen[-1]
        return Switch(gap_s, step_s, time.monotonic() - commanded_s)

    def close(self) -> None:
        """End the worker."""
        self._log.close()
        self._runner.close("node_stops")

    def _begin(self, dataset: str) -> None:
        self._tasks += 1
        self._runner.apply(
            TaskAssigned(
                zone="z",
                node=NODE,
                task_id=f"t{self._tasks}",
                generation=1,
                mode="normal",
                orders=(_order(self._tasks, dataset),),
                members=(TaskMember(node=NODE, gpus=1),),
            )
        )

    def _evaluations(self) -> int:
        return sum(isinstance(report, TaskEvaluated) for report in self._reports)

    def _until(self, condition: Callable[[], bool]) -> None:
        """Advance the runner until a condition holds.

        Raises:
            RuntimeError: a run fails, or the condition does not hold in time.
        """
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not condition():
            self._runner.advance()
            failed = [report.error for report in self._reports if isinstance(report, RunFailed)]
            if failed or time.monotonic() > deadline_s:
                raise RuntimeError(f"the runner failed: {failed or 'the condition does not hold in time'}")
            time.sleep(_POLL_S)


def _workload(dataset: str) -> TuningWorkload:
    return TuningWorkload(
        model=_MODEL,
        dataset=Dataset(path=dataset, samples=_SMALL_RECORDS),
        validation_path="small.jsonl",
        hyperparameters=TuningHyperparameters(batch_size=8),
        target=TrainingTarget(most_iterations=10**6),
    )


def _node_context(folder: Path, reports: list[FleetEvent]) -> RunnerContext:
    """Return the context of a runner that writes into a folder and appends its reports to a list."""
    settings = ExecutorSettings(
        cell="c",
        node=NODE,
        base_model=_MODEL,
        output_root=folder / "output",
        state_root=folder / "state",
    )
    return RunnerContext(
        settings, reports.append, DiskSpace({"folder": folder}, least_free_bytes=0), SystemClock()
    )


def _write_dataset(path: Path, records: int, seed: int) -> None:
    """Write records of 40 random words each."""
    draw = random.Random(seed)
    lines = (json.dumps({"text": " ".join(draw.choices(_WORDS, k=40))}) + "\n" for _ in range(records))
    path.write_text("".join(lines))
