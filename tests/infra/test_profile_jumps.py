"""Warnings of `millrace profile` about points that other work of the machine may have delayed."""

import pytest

from infra.commands.profile_steps import jumps
from schemas.profiles import ProfilePoint


def point(size: int, step_s: float) -> ProfilePoint:
    return ProfilePoint(
        gpu_type="A40", micro_batch_size=size, step_s=step_s, tokens_per_sample=20.0, steps=10
    )


@pytest.mark.parametrize(
    ("steps", "sizes"),
    [
        ([0.1, 0.15, 0.25], []),
        ([0.1, 0.2, 0.4], []),
        ([0.1, 0.099, 0.1], []),
        ([0.1, 0.5, 0.7], [2]),
        ([0.1, 0.05, 0.1], [2]),
        ([0.1, 0.3, 0.1], [2, 4]),
    ],
)
def test_step_beyond_possible_growth_is_named(steps, sizes):
    points = [point(2**power, step_s) for power, step_s in enumerate(steps)]
    assert [int(warning.split()[1]) for warning in jumps(points)] == sizes
