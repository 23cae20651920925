"""The gain of fusion: speed and memory of adapters trained together, relative to one after another.

As a program, it prints the peak memory of processes that train adapters: none of the caller's counts.
"""

import json
import multiprocessing
import random
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import cast

import torch
from transformers.utils import logging

from bench.figures import Measurement, Result
from executors.lora.base_model import load_base
from executors.lora.dataset import DatasetRoot
from executors.lora.default_base import default_base_directory
from executors.lora.engine import FusedEngine, keep_freed_memory
from executors.lora.lora_task import LLAMA_TARGET_MODULES, LoraTask
from schemas.interpreters import python_command

_WARM_ROUNDS = 3
_MEMORY_STEPS = 5
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
    """Measure `fused_speedup` and `fused_memory_ratio` of four adapters on the default base."""
    return measure_fused(adapters=4, quick=quick, seed=seed)


def measure_fused(adapters: int, quick: bool, seed: int, base_directory: Path | None = None) -> Result:
    """Measure speed and memory on a CPU with one thread, of small adapters on real text.

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
        speedup = _measure_speedup(folder, adapters, 8 if quick else 100, seed, directory)
        memory = _measure_memory(folder, adapters, 1 if quick else adapters, seed, directory)
        return Result((speedup, memory))


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


def _measure_memory(
    folder: Path, adapters: int, singles: int, seed: int, base_directory: Path
) -> Measurement:
    """Measure `singles` of the processes with one adapter each, as a sample of all."""
    fused_mib, *single_mib = _peaks_mib(folder, [adapters] + [1] * singles, seed, base_directory)
    separate_mib = fmean(single_mib) * adapters
    return Measurement(
        name="fused_memory_ratio",
        value=fused_mib / separate_mib,
        note=(
            f"peak RSS of one process that trains {adapters} adapters ({fused_mib:.0f} MiB) over that of "
            f"{adapters} processes with one each ({separate_mib:.0f} MiB, by {singles} measured), "
            f"{base_directory.name}; each is forked with its libraries loaded. Most of it is torch itself; "
            "RSS counts shared pages in each"
        ),
    )


def _peaks_mib(
    folder: Path, adapters_by_process: Sequence[int], seed: int, base_directory: Path
) -> list[float]:
    """Run a process for each entry, which trains that many adapters, and return their peak RSS in MiB."""
    command = python_command("-m", "bench.spine.fused", str(folder), str(seed), str(base_directory))
    command += map(str, adapters_by_process)
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return cast(list[float], json.loads(output.stdout))


def train_and_measure(folder: Path, seed: int, base_directory: Path, adapters: int) -> float:
    """Train a few steps in this process and return its peak RSS in MiB."""
    engine = make_engine(folder, adapters, seed, base_directory)
    for _ in range(_MEMORY_STEPS):
        engine.step()
    # Not ru_maxrss, which a process inherits from its parent.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError("the system does not report this process's peak memory")


def main(folder: str, seed: str, base_directory: str, *adapters_by_process: str) -> None:
    """Print the peaks as JSON. Each process is forked with everything imported, to import it only once."""
    measure = partial(train_and_measure, Path(folder), int(seed), Path(base_directory))
    with multiprocessing.get_context("fork").Pool(processes=1, maxtasksperchild=1) as pool:
        peaks_mib = pool.map(measure, map(int, adapters_by_process), chunksize=1)
    sys.stdout.write(json.dumps(peaks_mib))


if __name__ == "__main__":
    main(*sys.argv[1:])
