"""Fields of mixture-of-experts jobs: invalid values are refused by name."""

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from schemas.base import Record
from schemas.experts.commands import ExpertsPlaced, RanksAssigned
from schemas.experts.reports import ExpertsProfiled, ExpertsRouted
from schemas.experts.settings import ExpertsPolicy
from schemas.experts.workload import MoeServeWorkload, MoeTrainWorkload

DATASET = {"path": "reviews.jsonl", "samples": 100}
TRAIN: dict[str, Any] = {
    "kind": "moe-train",
    "work_samples": 1_000,
    "model": "tiny-gpt2",
    "conversion": {"experts": 4},
    "dataset": DATASET,
    "gating": {"mode": "adaptive", "threshold": 0.25},
    "adapter": {"rank": 4},
    "hyperparameters": {"curriculum": True},
    "ranks": 2,
}
SERVE: dict[str, Any] = {
    "kind": "moe-serve",
    "model": "tiny-moe",
    "requests": {"dataset": DATASET, "rate_per_s": 5.0, "until_s": 600.0},
    "ranks": 4,
}
RUN = {"cell": "c", "node": "n0", "run_id": "g1/a", "job_id": "a", "samples_done": 0}
PROFILED = {**RUN, "layers": [{"tokens": [3, 1]}], "path_length": 3, "paths": 1, "accuracy": 0.6}
ROUTED = {**RUN, "layers": [{"tokens": [3, 1], "doubles": 1}], "batches": 1, "interval_s": 1.0}
ASSIGNED: dict[str, Any] = {
    "zone": "z",
    "node": "n0",
    "run_id": "g1/a",
    "job_id": "a",
    "user": "ada",
    "generation": 1,
    "members": [{"node": "n0", "ranks": 4}],
    "resume_samples": 0,
    "report_interval_s": 10.0,
}
PLACED = {
    "zone": "z",
    "node": "n0",
    "job_id": "a",
    "generation": 1,
    "revision": 1,
    "layers": [{"layer": 0, "devices": [[0, 1], [1]]}],
}


def read(model: type[Record], values: dict[str, Any], **fields: Any) -> Any:
    return TypeAdapter(model).validate_json(json.dumps({**values, **fields}))


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (MoeTrainWorkload, TRAIN),
        (MoeServeWorkload, SERVE),
        (ExpertsPolicy, {"kind": "experts"}),
        (ExpertsProfiled, PROFILED),
        (ExpertsRouted, ROUTED),
        (RanksAssigned, {**ASSIGNED, "workload": TRAIN}),
        (RanksAssigned, {**ASSIGNED, "workload": SERVE}),
        (ExpertsPlaced, PLACED),
    ],
    ids=["train", "serve", "policy", "profiled", "routed", "assigned-train", "assigned-serve", "placed"],
)
def test_what_is_written_is_read_as_it_was(model: type[Record], values: dict[str, Any]) -> None:
    found = read(model, values)
    assert read(model, json.loads(found.model_dump_json())) == found
    with pytest.raises(ValidationError, match="extra_forbidden"):
        read(model, values, colour="red")


@pytest.mark.parametrize("threshold", [-0.01, 1.01, float("nan"), float("inf"), "0.5"], ids=str)
def test_threshold_outside_0_to_1_is_refused(threshold: Any) -> None:
    with pytest.raises(ValidationError, match=r"gating\.threshold"):
        read(MoeTrainWorkload, TRAIN, gating={"mode": "adaptive", "threshold": threshold})


def test_only_adaptive_gating_has_threshold() -> None:
    with pytest.raises(ValidationError, match="adaptive gating needs a threshold"):
        read(MoeTrainWorkload, TRAIN, gating={"mode": "adaptive"})
    with pytest.raises(ValidationError, match="gating top2 has no threshold"):
        read(MoeTrainWorkload, TRAIN, gating={"mode": "top2", "threshold": 0.5})


def test_only_adaptive_gating_states_its_probabilities() -> None:
    gating = {"mode": "adaptive", "threshold": 0.1, "threshold_on": "all"}
    assert read(MoeTrainWorkload, TRAIN, gating=gating).gating.threshold_on == "all"
    with pytest.raises(ValidationError, match="gating top2 has no threshold: leave threshold_on out"):
        read(MoeTrainWorkload, TRAIN, gating={"mode": "top2", "threshold_on": "all"})
    with pytest.raises(ValidationError, match=r"gating\.threshold_on"):
        read(MoeTrainWorkload, TRAIN, gating={**gating, "threshold_on": "some"})


def test_unstated_fields_leave_earlier_bytes() -> None:
    written = read(MoeTrainWorkload, TRAIN).model_dump(mode="json")
    assert written["gating"] == TRAIN["gating"]
    assert written["conversion"] == {"experts": 4, "every": 1, "noise": 0.01}
    assert "profiled_in" not in read(ExpertsProfiled, PROFILED).model_dump(mode="json")


def test_default_gating_is_top_2_then_top_1() -> None:
    without = {name: value for name, value in TRAIN.items() if name != "gating"}
    assert read(MoeTrainWorkload, without).gating.mode == "top2"
    assert read(MoeServeWorkload, SERVE).gating.mode == "top1"


def test_every_rank_needs_a_sample_of_a_batch() -> None:
    with pytest.raises(ValidationError, match="a global batch of 3 has no sample for each of 4 ranks"):
        read(MoeTrainWorkload, TRAIN, ranks=4, hyperparameters={"global_batch_size": 3})


def test_device_has_no_more_experts_than_exist() -> None:
    with pytest.raises(ValidationError, match="experts_per_device is 5, a layer has 4"):
        read(MoeTrainWorkload, TRAIN, experts_per_device=5)


@pytest.mark.parametrize(
    ("requests", "total"),
    [({}, 100), ({"most": 250}, 250), ({"until_s": 9.0}, None), ({"until_s": 9.0, "most": 7}, 7)],
    ids=["once-through", "so-many", "until", "both"],
)
def test_service_ends_after_requests_or_time(requests: dict[str, Any], total: int) -> None:
    workload = read(MoeServeWorkload, SERVE, requests={"dataset": DATASET, **requests})
    assert workload.total_samples == total


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ([], "at least 1 item"),
        ([{"tokens": [1, 2]}, {"tokens": [1]}], "layers have 1 to 2 experts"),
        ([{"tokens": [1, -1]}], "greater than or equal to 0"),
        ([{"tokens": [1, 2], "doubles": 2}], "2 tokens got two experts, and all experts together 3"),
        ([{"tokens": [0] * 257}], "at most 256 items"),
        ([{"tokens": [0] * 256}] * 65, "65 layers of 256 experts, at most 7"),
    ],
    ids=["none", "uneven", "negative", "doubles", "experts", "counts"],
)
def test_counts_that_cannot_be_are_refused(layers: list[Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        read(ExpertsRouted, ROUTED, layers=layers)
