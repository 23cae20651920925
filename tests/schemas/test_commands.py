"""However large its orders, a command fits into a record of its topic."""

import pytest
from pydantic import ValidationError

from schemas.codec import Decision, decode_decision
from schemas.lora import Dataset, InstructionColumns, LoraHyperparameters
from schemas.lora_commands import MAX_RUNS_PER_SLOT, RunOrder, SlotAssigned
from schemas.topics import COMMANDS, HEADERS_MAX_BYTES, topic_name, topics

LONGEST_NAME = "n" * 128
LONGEST_FLOAT = 1.2345678901234567e-05
LONGEST_COLUMN = "\N{GRINNING FACE}" * 64
LARGEST = RunOrder(
    run_id="r" * 192,
    job_id=LONGEST_NAME,
    user=LONGEST_NAME,
    work_samples=10**12,
    quota_samples=10**12,
    resume_samples=10**12,
    dataset=Dataset(
        path="\N{GRINNING FACE}" * 512,
        samples=10**12,
        columns=InstructionColumns(**dict.fromkeys(("instruction", "input", "output"), LONGEST_COLUMN)),
    ),
    hyperparameters=LoraHyperparameters(
        rank=1_024,
        alpha=LONGEST_FLOAT,
        dropout=LONGEST_FLOAT,
        target_modules=tuple(f"{number:02}".ljust(128, "n") for number in range(64)),
        learning_rate=LONGEST_FLOAT,
        weight_decay=LONGEST_FLOAT,
        batch_size=4_096,
        sequence_length=1_048_576,
        max_gradient_norm=LONGEST_FLOAT,
        seed=2**31 - 1,
    ),
)


def command(runs: int) -> SlotAssigned:
    return SlotAssigned(
        zone=LONGEST_NAME,
        base_model=LONGEST_NAME,
        node=LONGEST_NAME,
        slot=10**12,
        slot_start_s=LONGEST_FLOAT,
        slot_end_s=LONGEST_FLOAT,
        runs=(LARGEST,) * runs,
    )


def test_largest_command_fits_its_topic() -> None:
    decision = Decision(
        "i" * 256, LONGEST_NAME, "c" * 256, LONGEST_FLOAT, command(MAX_RUNS_PER_SLOT), "0" * 64
    )
    (most_bytes,) = (spec.max_message_bytes for spec in topics("p") if spec.name == topic_name("p", COMMANDS))
    assert len(decision.canonical) + HEADERS_MAX_BYTES < most_bytes
    assert decode_decision(decision.canonical).outcome == decision.outcome


def test_a_command_of_more_runs_is_refused() -> None:
    with pytest.raises(ValidationError, match="at most 128 items"):
        command(MAX_RUNS_PER_SLOT + 1)
