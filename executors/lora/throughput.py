"""How fast a base trains on this machine: rows for the table that prices and plans lean on."""

import json
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

import torch

from executors.lora.base_model import SharedBase
from executors.lora.dataset import DatasetRoot
from executors.lora.engine import FusedEngine
from executors.lora.task import LLAMA_TARGET_MODULES, LoraTask

_DATASET = "full.jsonl"


@dataclass(frozen=True)
class Workload:
    """Equal adapters that share the base; sequences are full."""

    rank: int
    batch_size: int
    sequence_length: int
    co_resident: int


@dataclass(frozen=True)
class ThroughputRow:
    """What each of the co-resident adapters gets.

    Attributes:
        workload: what was run.
        step_s: median time of a fused step in seconds.
        samples_per_second: sequences per second of one adapter; the node does ``co_resident`` times as many.
    """

    workload: Workload
    step_s: float
    samples_per_second: float


def workloads(
    ranks: Iterable[int],
    batch_sizes: Iterable[int],
    sequence_lengths: Iterable[int],
    co_residents: Iterable[int],
) -> list[Workload]:
    """All combinations."""
    return [Workload(*fields) for fields in product(ranks, batch_sizes, sequence_lengths, co_residents)]


def measure_throughput(
    base: SharedBase,
    workload: Workload,
    *,
    device: torch.device | str = "cpu",
    target_modules: tuple[str, ...] = LLAMA_TARGET_MODULES,
    warm_steps: int = 2,
    steps: int = 5,
) -> ThroughputRow:
    """Train a workload on made-up text for some steps and time them.

    Raises:
        ValueError: the workload does not suit the base.
    """
    with tempfile.TemporaryDirectory() as name:
        # One word is at least one token, so each record fills a sequence.
        record = {"text": "value " * workload.sequence_length}
        (Path(name) / _DATASET).write_text(json.dumps(record))
        engine = FusedEngine(base, DatasetRoot(Path(name)), device)
        for k in range(workload.co_resident):
            task = LoraTask(
                job_id=f"probe-{k}",
                rank=workload.rank,
                batch_size=workload.batch_size,
                sequence_length=workload.sequence_length,
                target_modules=target_modules,
                seed=k,
                dataset=_DATASET,
                total_samples=workload.batch_size * (warm_steps + steps),
            )
            engine.attach(task)
        times_s = [_timed_step(engine) for _ in range(warm_steps + steps)][warm_steps:]
        for job_id in engine.job_ids:
            engine.detach(job_id)
    step_s = median(times_s)
    return ThroughputRow(workload, step_s, workload.batch_size / step_s)


def _timed_step(engine: FusedEngine) -> float:
    # A step hands the losses to the host, so it is over when it returns, on a GPU too.
    start = time.perf_counter()
    engine.step()
    return time.perf_counter() - start
