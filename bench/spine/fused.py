"""The gain of fusion: speed of adapters trained together, relative to one after another."""

import json
import random
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from transformers.utils import logging

from bench.figures import Measurement, Result
from executors.lora.base_model import load_base
from executors.lora.dataset import DatasetRoot
from executors.lora.default_base import default_base_directory
from executors.lora.engine import FusedEngine, keep_freed_memory
from executors.lora.task import LLAMA_TARGET_MODULES, LoraTask

_WARM_ROUNDS = 3
BATCH_SIZE = 2
SEQUENCE_LENGTH = 64
RANK = 8

_DATASET = "code.jsonl"
_RECORDS = 256
# Any Python text of this length has more tokens than a sequence: all batches are full.
_RECORD_CHARACTERS = 1_000


def write_dataset(folder: Path, seed: int) -> None:
    """Write records of Python's standard library, each longer than a sequence."""
    draw = random.Random(seed)
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in paths]
    texts = [text for text in texts if len(text) >= 4 * _RECORD_CHARACTERS]
    with (folder / _DATASET).open("w", encoding="utf-8") as file:
        for text in draw.choices(texts, k=_RECORDS):
            start = draw.randrange(len(text) - _RECORD_CHARACTERS)
            file.write(json.dumps({"text": text[start : start + _RECORD_CHARACTERS]}) + "\n")


def make_engine(folder: Path, adapters: int, seed: int, base_directory: Path | None) -> FusedEngine:
    """Attach ``adapters`` tasks to an engine, in a process set up like an executor's: one thread."""
    torch.set_num_threads(1)
    keep_freed_memory()
    logging.disable_progress_bar()
    engine = FusedEngine(load_base(base_directory), DatasetRoot(folder))
    for k in range(adapters):
        task = LoraTask(
            job_id=f"job-{k}",
            rank=RANK,
            batch_size=BATCH_SIZE,
            sequence_length=SEQUENCE_LENGTH,
            seed=seed + k,
            dataset=_DATASET,
            target_modules=LLAMA_TARGET_MODULES,
            total_samples=10**12,
        )
        engine.attach(task)
    return engine


def measure_fused_training(quick: bool, seed: int) -> Result:
    """Measure `fused_speedup` of four adapters on the default base."""
    return measure_fused(adapters=4, quick=quick, seed=seed)


def measure_fused(adapters: int, quick: bool, seed: int, base_directory: Path | None = None) -> Result:
    """Measure speed on a CPU with one thread, of small adapters on real text.

    Args:
        adapters: number of tasks that share the base; at least 2.
        quick: fewer rounds.
        seed: determines data and adapters.
        base_directory: a local Llama-like model; the default base if not given.
    """
    if adapters < 2:
        raise ValueError("fusion needs at least two adapters")
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_dataset(folder, seed)
        directory = base_directory or default_base_directory()
        return Result((_measure_speedup(folder, adapters, 8 if quick else 100, seed, directory),))


def _measure_speedup(
    folder: Path, adapters: int, rounds: int, seed: int, base_directory: Path
) -> Measurement:
    threads = torch.get_num_threads()
    try:
        engine = make_engine(folder, adapters, seed, base_directory)

        def one_after_another() -> None:
            for job_id in engine.job_ids:
                engine.step([job_id])

        fused_s, separate_s = _time_in_turn(engine.step, one_after_another, rounds)
    finally:
        torch.set_num_threads(threads)
    fused_ms, separate_ms = 1e3 * median(fused_s), 1e3 * median(separate_s)
    speedup = separate_ms / fused_ms
    return Measurement(
        name="fused_speedup",
        value=speedup,
        note=(
            f"{adapters} adapters of rank {RANK}, one step each on {BATCH_SIZE} x {SEQUENCE_LENGTH} tokens, "
            f"one CPU thread, {base_directory.name}: {fused_ms:.1f} ms fused, {separate_ms:.1f} ms one after "
            f"another on the same base and engine; medians of {rounds} interleaved rounds"
        ),
    )


def _time_in_turn(
    first: Callable[[], object], second: Callable[[], object], rounds: int
) -> tuple[list[float], list[float]]:
    """Time two actions in seconds, in rounds of one each that begin with either alternately.

    So a temporary slowdown of the machine affects both.
    """
    actions = (first, second)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(_WARM_ROUNDS + rounds):
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            start = time.perf_counter()
            actions[index]()
            if number >= _WARM_ROUNDS:
                times[index].append(time.perf_counter() - start)
    return times
