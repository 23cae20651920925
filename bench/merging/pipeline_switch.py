"""The cost of a switch between two pipeline-parallel jobs: with and without overlap, in both directions."""

import json
import multiprocessing
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from bench.spine.fused_workload import write_dataset
from executors.gang.meeting import open_store
from executors.lora.dataset import DatasetRoot
from executors.lora.default_base import default_base_directory
from executors.lora.engine import keep_freed_memory
from executors.lora.task import LLAMA_TARGET_MODULES, LoraTask
from executors.tuner.data import TokenizedFile
from executors.tuner.pipeline.partition import Direction
from executors.tuner.pipeline.pool import Pipeline, join_pipeline
from executors.tuner.pipeline.preparation import PipelinePlan, prepare_task
from executors.tuner.pipeline.switch import switch
from executors.tuner.pipeline.task import load_task
from executors.tuner.pipeline.trace import Span, TrainingGap, training_gap

_LOOPBACK = "127.0.0.1"
_STEPS = 3
"""Steps of each job between two switches."""
_TIMEOUT_S = 300.0
_VARIANTS: tuple[tuple[Direction, bool], ...] = (
    ("forward", False),
    ("forward", True),
    ("reverse", False),
    ("reverse", True),
)

_context = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class SwitchWorkload:
    """Jobs that follow each other; a job's batch is ``batch_size`` sequences in ``micro_batches`` parts."""

    rank: int = 8
    batch_size: int = 16
    micro_batches: int = 4
    sequence_length: int = 64


@dataclass(frozen=True)
class SwitchMeasurement:
    """Medians over the switches of one kind, in seconds; see `TrainingGap` for what is measured.

    Attributes:
        processes: ranks of the pipeline.
        second: direction of the job that is switched to; the one before runs forward.
        overlap: whether storing and loading overlap with training.
        switches: how many were measured.
        between_s: from the old job's last backward to the new one's first forward, over all ranks.
        mean_idle_s: the ranks' mean time between their own last backward and first forward.
        last_and_first_s: both steps beside the switch together.
        step_s: a step away from switches.
    """

    processes: int
    second: Direction
    overlap: bool
    switches: int
    between_s: float
    mean_idle_s: float
    last_and_first_s: float
    step_s: float


def measure_pipeline_switch(
    processes: int,
    *,
    switches: int = 10,
    workload: SwitchWorkload | None = None,
    base_directory: Path | None = None,
    seed: int = 0,
) -> tuple[SwitchMeasurement, ...]:
    """Measure switches on this machine's CPU, one thread for each process.

    The kinds take turns, switch by switch, so that a machine that slows down for a while slows all of them.

    Args:
        processes: ranks, which is stages.
        switches: of each kind; one more of each warms up.
        workload: the jobs.
        base_directory: a local model that can be cut; the default base if not given.
        seed: decides data and adapters.

    Returns:
        one for each of forward after forward and reverse after forward, without and with overlap.

    Raises:
        RuntimeError: a process has failed.
    """
    directory = base_directory or default_base_directory()
    with TemporaryDirectory() as name:
        write_dataset(Path(name), seed)
        order = {
            "processes": processes,
            "directory": str(directory),
            "dataset_root": name,
            "switches": switches + 1,
            "workload": asdict(workload or SwitchWorkload()),
            "seed": seed,
        }
        spans = _run_processes(processes, order)
    results = []
    for second, overlap in _VARIANTS:
        names = [_job_ids(second, overlap, number) for number in range(1, switches + 1)]
        gaps = [training_gap(spans, old, new) for old, new in names]
        steps_s = [_step_s(spans, old) for old, _ in names]
        results.append(_summary(processes, second, overlap, gaps, steps_s))
    return tuple(results)


def _summary(
    processes: int, second: Direction, overlap: bool, gaps: Sequence[TrainingGap], steps_s: Sequence[float]
) -> SwitchMeasurement:
    return SwitchMeasurement(
        processes=processes,
        second=second,
        overlap=overlap,
        switches=len(gaps),
        between_s=median(gap.between_s for gap in gaps),
        mean_idle_s=median(gap.mean_idle_s for gap in gaps),
        last_and_first_s=median(gap.last_and_first_s for gap in gaps),
        step_s=median(steps_s),
    )


def _step_s(spans: Sequence[Span], job_id: str) -> float:
    """From the first forward of a job's first step to that of its second."""
    starts_s = [
        min(s.start_s for s in spans if s.job_id == job_id and s.kind == "forward" and s.step == step)
        for step in (0, 1)
    ]
    return starts_s[1] - starts_s[0]


def _job_ids(second: Direction, overlap: bool, number: int) -> tuple[str, str]:
    kind = f"{second}-{'overlap' if overlap else 'plain'}-{number}"
    return f"{kind}-old", f"{kind}-new"


def _run_processes(processes: int, order: dict[str, Any]) -> list[Span]:
    _context.set_forkserver_preload([__name__])
    store = open_store(_LOOPBACK)
    workers, ends = [], []
    for rank in range(processes):
        mine, theirs = _context.Pipe()
        told = json.dumps(order | {"rank": rank, "port": store.port})
        worker = _context.Process(target=_work, args=(told, theirs), daemon=True)
        worker.start()
        theirs.close()
        workers.append(worker)
        ends.append(mine)
    try:
        spans = []
        for rank, end in enumerate(ends):
            if not end.poll(_TIMEOUT_S):
                raise RuntimeError(f"rank {rank} has not ended within {_TIMEOUT_S:g} s")
            try:
                word = json.loads(end.recv_bytes())
            except EOFError:
                raise RuntimeError(f"rank {rank} has died") from None
            if "error" in word:
                raise RuntimeError(f"rank {rank}: {word['error']}")
            spans += [Span(**fields) for fields in word["spans"]]
        return spans
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
        for end in ends:
            end.close()


def _work(told: str, connection: "Connection[bytes, bytes]") -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    order = json.loads(told)
    try:
        store = TCPStore(_LOOPBACK, order["port"], is_master=False, timeout=timedelta(seconds=_TIMEOUT_S))
        directory = Path(order["directory"])
        with join_pipeline(store, order["rank"], order["processes"], directory) as pipeline:
            _switch_in_turn(pipeline, order)
            word: dict[str, Any] = {"spans": [asdict(span) for span in pipeline.trace.spans]}
    except Exception as error:
        word = {"error": f"{type(error).__name__}: {error}"}
    connection.send_bytes(json.dumps(word).encode())


def _switch_in_turn(pipeline: Pipeline, order: dict[str, Any]) -> None:
    datasets = DatasetRoot(Path(order["dataset_root"]))
    workload = SwitchWorkload(**order["workload"])

    def prepare(job_id: str, direction: Direction) -> Any:
        task = LoraTask(
            job_id=job_id,
            rank=workload.rank,
            batch_size=workload.batch_size,
            sequence_length=workload.sequence_length,
            seed=order["seed"],
            dataset="code.jsonl",
            target_modules=LLAMA_TARGET_MODULES,
            total_samples=10**9,
        )
        plan = PipelinePlan(task, workload.micro_batches, direction)
        tokenizer = pipeline.structure.base.tokenizer
        data = TokenizedFile(datasets.open(task.dataset), tokenizer, task.sequence_length, kept_tokens=10**6)
        return prepare_task(pipeline, plan, data)

    for number in range(order["switches"]):
        for second, overlap in _VARIANTS:
            old, new = _job_ids(second, overlap, number)
            before, after = prepare(old, "forward"), prepare(new, second)
            task = load_task(pipeline, before)
            for _ in range(_STEPS - 1):
                task.step()
            task, stored = switch(task, after, overlap=overlap)
            for _ in range(_STEPS - 1):
                task.step()
            stored.result(_TIMEOUT_S)
            task.close()
