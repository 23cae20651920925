"""The tasks of the part `fused training`, and the peak memory of processes that train them.

The tasks are small adapters on real text. `python -m bench.spine.fused_memory` is a separate program, to
exclude all other memory.
"""

import json
import multiprocessing
import random
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

import torch
from transformers.utils import logging

from executors.lora.base_model import load_base
from executors.lora.dataset import DatasetRoot
from executors.lora.engine import FusedEngine, keep_freed_memory
from executors.lora.task import LLAMA_TARGET_MODULES, LoraTask
from schemas.interpreters import python_command

BATCH_SIZE = 2
SEQUENCE_LENGTH = 64
RANK = 8

_DATASET = "code.jsonl"
_RECORDS = 256
# Any Python text of this length has more tokens than a sequence: all batches are full.
_RECORD_CHARACTERS = 1_000
_STEPS = 5


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


def measure_peaks_mib(
    folder: Path, adapters_by_process: Sequence[int], seed: int, base_directory: Path
) -> list[float]:
    """Run a process for each entry, which trains that many adapters, and return their peak RSS in MiB."""
    command = python_command("-m", "bench.spine.fused_memory", str(folder), str(seed), str(base_directory))
    command += map(str, adapters_by_process)
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return cast(list[float], json.loads(output.stdout))


def train_and_measure(folder: Path, seed: int, base_directory: Path, adapters: int) -> float:
    """Train a few steps in this process and return its peak RSS in MiB."""
    engine = make_engine(folder, adapters, seed, base_directory)
    for _ in range(_STEPS):
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
