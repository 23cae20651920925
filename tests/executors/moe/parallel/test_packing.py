"""How many experts a device hosts, and who exchanges tokens with whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.moe.parallel.packing import (
    MicroOpTimes,
    Packing,
    first_packing,
    next_packing,
    resident_experts,
    settled_packing,
)

packings = (
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))
    .map(lambda powers: (2 ** powers[0], 2 ** powers[1], 2 ** powers[2]))
    .filter(lambda each: each[2] <= each[1] and each[1] // each[2] <= each[0])
    .map(lambda each: Packing(*each))
)


@given(packings)
def test_each_group_hosts_every_expert_once_and_replicas_the_same(packing: Packing) -> None:
    for rank in range(packing.world):
        hosted = [expert for peer in packing.group(rank) for expert in packing.hosted(peer)]
        assert hosted == list(range(packing.experts))
        assert rank in packing.group(rank)
        same = [peer for peer in range(packing.world) if packing.hosted(peer) == packing.hosted(rank)]
        assert list(packing.replicas(rank)) == same
        assert all(
            expert in packing.hosted(packing.holder(expert, rank)) for expert in range(packing.experts)
        )


@given(
    packing=packings,
    times=st.lists(st.tuples(st.floats(0.1, 9.0), st.floats(0.1, 9.0)), min_size=6, max_size=6),
)
def test_packing_settles_at_the_least_at_which_the_experts_outlast_the_all_to_all(
    packing: Packing, times: list[tuple[float, float]]
) -> None:
    measured = {packing.per_device * 2**power: MicroOpTimes(*each) for power, each in enumerate(times)}
    settled = settled_packing(packing, lambda each: measured[each.per_device])
    sizes = [size for size in measured if packing.per_device <= size <= packing.experts]
    enough = [size for size in sizes if measured[size].feed_forward_s >= measured[size].all_to_all_s]
    assert settled.per_device == min(enough, default=max(sizes))


def test_experts_are_not_packed_when_they_outlast_the_all_to_all() -> None:
    packing = Packing(4, 4, 1)
    assert next_packing(packing, MicroOpTimes(all_to_all_s=1.0, feed_forward_s=1.0)) == packing
    assert next_packing(packing, MicroOpTimes(all_to_all_s=1.1, feed_forward_s=1.0)).per_device == 2


@pytest.mark.parametrize(("world", "experts", "per_device"), [(4, 4, 1), (4, 16, 4), (8, 4, 1)])
def test_at_first_each_device_hosts_as_few_as_can_be(world: int, experts: int, per_device: int) -> None:
    assert first_packing(world, experts).per_device == per_device


@pytest.mark.parametrize(("world", "experts", "per_device"), [(4, 6, 1), (4, 4, 3), (3, 4, 2), (4, 4, 0)])
def test_experts_that_cannot_be_dealt_out_are_refused(world: int, experts: int, per_device: int) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        Packing(world, experts, per_device)


@pytest.mark.parametrize(("budget_bytes", "resident"), [(400, 4), (399, 2), (200, 1), (100, 0)])
def test_experts_stay_on_the_device_as_far_as_one_more_has_room(budget_bytes: int, resident: int) -> None:
    assert resident_experts(4, 100, budget_bytes) == resident


def test_a_budget_without_room_for_one_expert_is_refused() -> None:
    with pytest.raises(ValueError, match="an expert of 100 bytes does not fit into a budget of 99 bytes"):
        resident_experts(4, 100, 99)
