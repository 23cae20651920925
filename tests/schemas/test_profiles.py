"""Profiles that no machine can have, or that contradict themselves, are refused by their schema."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.profiles import (
    MAX_SAMPLES_PER_GPU_S,
    MAX_TOKENS_PER_GPU_S,
    MeasuredSteps,
    ProfileKey,
    ProfilePoint,
    ProfileReported,
    sequence_class,
    speed_fault,
)

KEY = {
    "base_model": "tiny",
    "sequence_tokens": 64,
    "rank": 8,
    "target_modules": ["q_proj"],
    "precision": "float32",
}
POINT = {"gpu_type": "A40", "micro_batch_size": 8, "step_s": 0.5, "tokens_per_sample": 20.0, "steps": 3}
PROFILE = {"cell": "c", "zone": "z", "profiler": "lab", "key": KEY, "points": [POINT]}


def report(**changes: object) -> ProfileReported:
    """A profile as a record of Kafka has it."""
    return ProfileReported.model_validate_json(json.dumps(PROFILE | changes))


def test_possible_profile_is_read():
    (point,) = report().points
    assert point.samples_per_s == 16.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        # 8 samples in 8 ps are 1e12 samples/s.
        ({"step_s": 8e-12}, "greater than or equal to"),
        ({"step_s": 1e-6}, "is faster than any GPU: check the units"),
        ({"step_s": math.nan}, "step_s"),
        ({"step_s": math.inf}, "step_s"),
        ({"step_s": -1.0}, "step_s"),
        ({"memory_gib": -1.0}, "memory_gib"),
        ({"memory_gib": math.nan}, "memory_gib"),
        ({"loader_s": -1.0}, "loader_s"),
        ({"micro_batch_size": 0}, "micro_batch_size"),
        ({"tokens_per_sample": 65.0}, "a point has 65.0 tokens per sample, and sequence_tokens is 64"),
        ({"exchange_s": 0.6}, "longer than the step of 0.5 s"),
        ({"nodes": 2}, "2 nodes for 1 gpus"),
        ({"steps": 0}, "steps"),
    ],
    ids=str,
)
def test_impossible_point_is_refused(changes, words):
    with pytest.raises(ValidationError, match=words):
        report(points=[POINT | changes])


def test_equal_configurations_are_refused():
    with pytest.raises(ValidationError, match="two points have one configuration"):
        report(points=[POINT, POINT | {"step_s": 0.6}])


@pytest.mark.parametrize("tokens", [0, 3, 100])
def test_sequence_class_is_power_of_two(tokens):
    with pytest.raises(ValidationError, match="sequence_tokens"):
        report(key=KEY | {"sequence_tokens": tokens})


@given(st.floats(1, 2**20))
def test_class_is_least_power_of_two(tokens):
    held = sequence_class(tokens)
    assert held >= tokens
    assert held == 1 or held / 2 < tokens


@given(st.integers(1, 4_096), st.floats(1, 2**20), st.floats(1e-6, 86_400))
def test_reports_of_runs_have_same_bound(size, tokens, step_s):
    fields = {"micro_batch_size": size, "step_s": step_s, "tokens_per_sample": tokens, "steps": 3}
    fast = size / step_s > MAX_SAMPLES_PER_GPU_S or size / step_s * tokens > MAX_TOKENS_PER_GPU_S
    assert (speed_fault(size, tokens, step_s) is not None) == fast
    for model, more in ((MeasuredSteps, {"precision": "float32"}), (ProfilePoint, {"gpu_type": "A40"})):
        if fast:
            with pytest.raises(ValidationError, match="faster than any GPU"):
                model(**fields, **more)
        else:
            assert model(**fields, **more).step_s == step_s


def test_modules_are_compared_without_order():
    other = {**KEY, "target_modules": ("v_proj", "q_proj")}
    assert ProfileKey(**other).target_modules == ("q_proj", "v_proj")
