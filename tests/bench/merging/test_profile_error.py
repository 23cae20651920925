"""The error of profiles on recorded steps: what is kept aside, and how it is predicted."""

import random

import pytest

from bench.merging.parts import MODELS
from bench.merging.profile_error import KNOWN_SIZES, SPLITS, measure_profiles, recorded_error
from streams.cell.readings import StepSetting
from tests.support.profiles import SHARED

SIZES = (1, 2, 4, 8, 16, 32)
GPUS = (1, 2, 4, 8, 16)


def steps(curve):
    """Steps of one node by a function of micro-batch and GPUs."""
    return {StepSetting("X1", size, gpus, 1): curve(size, gpus) for size in SIZES for gpus in GPUS}


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("seed", range(3))
def test_split_keeps_each_step_once(name, seed):
    known, aside = SPLITS[name](steps(lambda size, gpus: 1.0), random.Random(seed))
    assert known
    assert aside
    assert not set(known) & set(aside)


def test_three_micro_batches_are_known():
    known, aside = SPLITS["micro-batches"](steps(lambda size, gpus: 1.0), random.Random(0))
    assert len(known) == KNOWN_SIZES * len(GPUS)
    assert len(known) + len(aside) == len(SIZES) * len(GPUS)


@pytest.mark.parametrize("name", SPLITS)
def test_straight_line_is_predicted_exactly(name):
    straight = steps(lambda size, gpus: 0.5 + 0.25 * size + 0.125 * gpus)
    found = recorded_error("tiny", "X1", straight, name, SPLITS[name](straight, random.Random(1)))
    assert found.unknown == 0
    assert max(found.errors_pct) < 1e-9


@pytest.mark.skipif(not SHARED.exists(), reason="the measured profiles are not here")
def test_recorded_steps_are_predicted_within_goals():
    found = {one.name: one.value for one in measure_profiles(SHARED, MODELS, 0).measurements}
    assert found["recorded_profile_error_pct"] <= 10
    assert found["recorded_profile_error_p90_pct"] <= 25
