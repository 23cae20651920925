"""Number of experts that a device hosts, and the ranks that exchange tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.moe.parallel.packing import (
    ExpertBytes,
    MicroOpTimes,
    Packing,
    next_packing,
    resident_experts,
)

packings = (
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))
    .map(lambda powers: (2 ** powers[0], 2 ** powers[1], 2 ** powers[2]))
    .filter(lambda each: each[2] <= each[1] and each[1] // each[2] <= each[0])
    .map(lambda each: Packing(*each))
)


@given(packings)
def test_group_hosts_each_expert_once(packing: Packing) -> None:
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
def test_packing_stops_where_experts_outlast_all_to_all(
    packing: Packing, times: list[tuple[float, float]]
) -> None:
    measured = {packing.per_device * 2**power: MicroOpTimes(*each) for power, each in enumerate(times)}
    settled = packing
    while (following := next_packing(settled, measured[settled.per_device])) != settled:
        settled = following
    sizes = [size for size in measured if packing.per_device <= size <= packing.experts]
    enough = [size for size in sizes if measured[size].feed_forward_s >= measured[size].all_to_all_s]
    assert settled.per_device == min(enough, default=max(sizes))


def test_experts_outlasting_all_to_all_stay_unpacked() -> None:
    packing = Packing(4, 4, 1)
    assert next_packing(packing, MicroOpTimes(all_to_all_s=1.0, feed_forward_s=1.0)) == packing
    assert next_packing(packing, MicroOpTimes(all_to_all_s=1.1, feed_forward_s=1.0)).per_device == 2


@pytest.mark.parametrize(("world", "experts", "per_device"), [(4, 6, 1), (4, 4, 3), (3, 4, 2), (4, 4, 0)])
def test_experts_that_cannot_be_dealt_out_are_refused(world: int, experts: int, per_device: int) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        Packing(world, experts, per_device)


EXPERT = ExpertBytes(kept=100, computing=20, visiting=50)
"""Three layers have 320 bytes of each expert."""


@pytest.mark.parametrize(
    ("budget_bytes", "resident"),
    [(1_280, 4), (1_279, 3), (3 * 320 + 50, 3), (3 * 320 + 49, 2), (320 + 50, 1), (320 + 49, 0), (50, 0)],
)
def test_experts_stay_with_room_for_one_more(budget_bytes: int, resident: int) -> None:
    assert resident_experts(4, 3, EXPERT, budget_bytes) == resident


@given(
    per_device=st.integers(1, 9),
    layers=st.integers(1, 5),
    expert=st.builds(ExpertBytes, st.integers(1, 99), st.integers(0, 99), st.integers(1, 99)),
    budget_bytes=st.integers(1, 5_000),
)
def test_kept_experts_fit_next_to_incoming_one(
    per_device: int, layers: int, expert: ExpertBytes, budget_bytes: int
) -> None:
    def used_bytes(resident: int) -> int:
        coming = expert.visiting if resident < per_device else 0
        return resident * (layers * expert.kept + expert.computing) + coming

    fitting = [each for each in range(per_device + 1) if used_bytes(each) <= budget_bytes]
    if fitting:
        assert resident_experts(per_device, layers, expert, budget_bytes) == max(fitting)
    else:
        with pytest.raises(ValueError, match="an expert needs"):
            resident_experts(per_device, layers, expert, budget_bytes)


def test_budget_below_one_expert_names_remedy() -> None:
    expert = ExpertBytes(kept=2**32, computing=0, visiting=2**31)
    with pytest.raises(
        ValueError,
        match="an expert needs 2 GiB of a device's memory while it computes, and experts may take 1 GiB: "
        "raise MILLRACE_EXPERT_MEMORY_GIB",
    ):
        resident_experts(4, 1, expert, 2**30)
