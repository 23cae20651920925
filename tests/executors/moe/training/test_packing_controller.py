"""Experts are packed again at given times, by measured durations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.moe.parallel.packing import MicroOpTimes, Packing, PackingController, begin_packing

SLOW = MicroOpTimes(all_to_all_s=2.0, feed_forward_s=1.0)
FAST = MicroOpTimes(all_to_all_s=1.0, feed_forward_s=2.0)


def history(times: list[MicroOpTimes], packing: Packing, *, is_fixed: bool = False) -> list[tuple[int, int]]:
    """After which steps is measured, and how many experts are on a device from then on."""
    controller = PackingController(packing, is_fixed=is_fixed)
    told = []
    for step in range(1, 40):
        if controller.measures_after(step):
            packing = controller.decide(packing, times[len(told)])
            told.append((step, packing.per_device))
    return told


def test_experts_double_after_step_10_every_4() -> None:
    assert history([SLOW, SLOW, FAST], Packing(16, 16, 1)) == [(10, 2), (14, 4), (18, 4)]


def test_the_first_steps_do_not_count() -> None:
    controller = PackingController(Packing(4, 4, 1), is_fixed=False)
    assert [step for step in range(1, 40) if controller.discards_after(step)] == [6]


def test_fully_replicated_experts_need_no_measurement() -> None:
    assert history([SLOW] * 9, Packing(4, 4, 1)) == [(10, 2), (14, 4)]
    assert history([], Packing(1, 4, 4)) == []


def test_fixed_experts_per_device_are_kept() -> None:
    assert history([], Packing(4, 4, 1), is_fixed=True) == []


@given(world=st.integers(1, 64), experts=st.integers(1, 64))
def test_job_begins_with_fewest_experts_per_device(world: int, experts: int) -> None:
    packing = begin_packing(world, experts, None)
    fewer = [each for each in range(1, packing.per_device) if experts % each == 0]
    assert all(world % (experts // each) for each in fewer)


def test_a_packing_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="8 experts, 2 on a device, are on 4 ranks, and 6 ranks cannot"):
        begin_packing(6, 8, 2)
