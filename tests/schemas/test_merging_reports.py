"""Nodes' reports about fine-tuning jobs: invalid values are refused by name."""

import json

import pytest

from schemas import codec
from schemas.codec import InvalidRecordError
from schemas.merging.reports import TaskProfiled

PROFILE = {
    "cell": "c",
    "node": "n0",
    "run_id": "p1/a",
    "job_id": "a",
    "samples_done": 0,
    "losses": [2.0, 1.5, 1.2],
    "embedding": [1.0],
    "accuracy": 0.1,
    "steps": [
        {
            "gpus": 1,
            "nodes": 1,
            "micro_batch_size": 8,
            "accumulation_steps": 1,
            "step_s": 1.0,
            "exchange_s": 0.0,
        }
    ],
    "memory_gib": 1.0,
    "loader_s": 1.0,
    "dataset_samples": 16,
}


def read(**fields: object) -> TaskProfiled:
    headers = [("ce_specversion", b"1.0"), ("ce_type", TaskProfiled.TYPE.encode())]
    headers += [("ce_id", b"1"), ("ce_source", b"n0")]
    event = codec.decode_event(json.dumps({**PROFILE, **fields}).encode(), headers).event
    assert isinstance(event, TaskProfiled)
    return event


@pytest.mark.parametrize("field", ["accuracy", "accuracy_after_epoch"])
@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "finite number"),
        (float("inf"), "finite number"),
        (-0.01, "greater than or equal to 0"),
        (1.01, "less than or equal to 1"),
        ("0.5", "valid number"),
    ],
)
def test_impossible_accuracy_is_refused_by_name(field: str, value: object, why: str) -> None:
    with pytest.raises(InvalidRecordError, match=f"{field}: .*{why}"):
        read(**{field: value})


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0, None])
def test_epoch_accuracy_is_fraction_or_absent(value: float | None) -> None:
    assert read(accuracy_after_epoch=value).accuracy_after_epoch == value


def test_profile_without_epoch_accuracy_was_shorter() -> None:
    assert read().accuracy_after_epoch is None
