"""Noise on what the task merger is told: bounded, tied to the names of kinds, and a valid problem still."""

import pytest

from bench.merging.instances import Shape, synthetic
from bench.merging.noise import NO_NOISE, Noise, linear_steps
from schemas.merging.problems import MergeProblem
from solvers.merging.merger import merge

PROBLEM = synthetic(Shape(units=30, gpus=8, kinds=4, seed=5))
NAMES = ("red", "blue", "green", "grey")


def test_without_noise_the_problem_is_as_it_was():
    assert NO_NOISE.on(PROBLEM, NAMES) == PROBLEM
    assert not NO_NOISE.is_any
    assert Noise(steps=0.1).is_any


@pytest.mark.parametrize("scale", [0.1, 0.4, 1.6])
def test_noise_is_within_its_scale_and_the_problem_valid(scale):
    told = Noise(scale, scale, scale, seed=1).on(PROBLEM, NAMES)
    assert MergeProblem.model_validate(told.model_dump()) == told
    for before, after in zip(PROBLEM.units, told.units, strict=True):
        factor = after.iterations / before.iterations
        assert max(1 - scale, 0.05) - 1e-9 <= factor <= 1 + scale
    for before, after in zip(PROBLEM.transfers, told.transfers, strict=True):
        assert (
            abs(before.receiver_ratio - after.receiver_ratio) <= scale * abs(1 - before.receiver_ratio) + 0.05
        )
    for steps in told.step_tables:
        times = [step.step_s for step in steps]
        assert times == sorted(set(times), reverse=True)
    assert merge(told, 10.0) is not None


def test_jobs_of_a_kind_are_off_alike_whatever_the_place_of_the_kind():
    noise = Noise(iterations=0.4)
    turned = PROBLEM.model_copy(
        update={
            "kinds": PROBLEM.kinds[::-1],
            "units": tuple(unit.model_copy(update={"kind": 3 - unit.kind}) for unit in PROBLEM.units),
            "transfers": (),
        }
    )
    one, other = noise.on(PROBLEM, NAMES), noise.on(turned, NAMES[::-1])
    assert [unit.iterations for unit in one.units] == [unit.iterations for unit in other.units]


def test_linear_steps_are_as_many_times_faster_as_there_are_gpus():
    for steps in linear_steps(PROBLEM).step_tables:
        assert {round(step.step_s * step.gpus, 9) for step in steps} == {
            round(steps[0].step_s * steps[0].gpus, 9)
        }
