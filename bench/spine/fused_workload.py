"""The tasks of the fused-engine benchmark: small adapters on the default base, on real text."""

import json
import random
import sysconfig
from pathlib import Path

import torch
from transformers.utils import logging

from executors.lora.base_model import load_base
from executors.lora.dataset import DatasetRoot
from executors.lora.engine import FusedEngine, keep_freed_memory
from executors.lora.task import LLAMA_TARGET_MODULES, LoraTask

BATCH_SIZE = 2
SEQUENCE_LENGTH = 64
RANK = 8

_DATASET = "code.jsonl"
_RECORDS = 256
# So much Python makes more tokens than a sequence holds, whatever the text: all batches are full.
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
