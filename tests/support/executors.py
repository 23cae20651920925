"""A tiny base model, datasets and orders for the tests of executors."""

import json
import random
from pathlib import Path

from executors.lora.default_base import Recipe
from schemas.lora import Dataset, LoraHyperparameters
from schemas.lora_commands import RunOrder, SlotAssigned

CELL = "c"
BASE_MODEL = "tiny"
CHAIN = "0" * 64
"""A link that no test here checks."""

TINY_RECIPE = Recipe(
    vocabulary_size=320,
    hidden_features=32,
    intermediate_features=64,
    layers=2,
    heads=2,
    longest_sequence_tokens=128,
    text_bytes=60_000,
    steps=150,
    sequence_length=32,
)

_WORDS = ("def", "class", "return", "self", "import", "value", "error", "raise", "range", "lambda")


def write_dataset(path: Path, records: int = 48, seed: int = 5) -> None:
    """Write a JSONL file of prompts and completions of any length."""
    draw = random.Random(seed)

    def text(most: int) -> str:
        return " ".join(draw.choices(_WORDS, k=draw.randint(1, most)))

    lines = (json.dumps({"prompt": text(6), "completion": text(25)}) for _ in range(records))
    path.write_text("".join(f"{line}\n" for line in lines))


def order(
    job_id: str,
    quota: int,
    work: int = 10_000,
    *,
    resume: int = 0,
    dataset: str = "pairs.jsonl",
    user: str = "u",
    **hyperparameters: object,
) -> RunOrder:
    """A job's part of a slot; `assignment` names the run."""
    fields = {"rank": 4, "batch_size": 4, "sequence_length": 24, "learning_rate": 1e-2} | hyperparameters
    return RunOrder(
        run_id=f"0/{job_id}",
        job_id=job_id,
        user=user,
        work_samples=work,
        quota_samples=quota,
        resume_samples=resume,
        dataset=Dataset(path=dataset, samples=48),
        hyperparameters=LoraHyperparameters(**fields),
    )


def assignment(
    *runs: RunOrder,
    node: str = "n1",
    slot: int = 0,
    start_s: float = 1_000.0,
    length_s: float = 100.0,
    base_model: str = BASE_MODEL,
) -> SlotAssigned:
    """Return the command of a node's tasks in a slot."""
    return SlotAssigned(
        zone="z",
        base_model=base_model,
        node=node,
        slot=slot,
        slot_start_s=start_s,
        slot_end_s=start_s + length_s,
        runs=tuple(run.model_copy(update={"run_id": f"{slot}/{run.job_id}"}) for run in runs),
    )
