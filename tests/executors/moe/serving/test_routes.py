"""Rows go to the slots that the counts determine, and come back to their places."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from executors.moe.serving.slots import route_of, spread_evenly
from solvers.experts.placement import DeviceGroup, ExpertDemand, ExpertPlacement
from solvers.experts.schemes import SCHEMES
from solvers.experts.splitting import even_split, sends
from tests.support.examples import examples


@st.composite
def placed(draw: st.DrawFn) -> tuple[ExpertPlacement, np.ndarray]:
    """A placement by any scheme, and counts of each rank."""
    devices = draw(st.integers(1, 4))
    experts = draw(st.integers(1, 2 * devices))
    loads = draw(st.lists(st.integers(0, 50), min_size=experts, max_size=experts))
    scheme = SCHEMES[draw(st.sampled_from(sorted(SCHEMES)))]
    placement = scheme.place(ExpertDemand.of_counts(np.array(loads)), DeviceGroup(devices, 3))
    row = st.lists(st.integers(0, 9), min_size=experts, max_size=experts)
    return placement, np.array(draw(st.lists(row, min_size=devices, max_size=devices)), np.int64)


@settings(max_examples=examples(200), deadline=None)
@given(placed(), st.randoms(use_true_random=False))
def test_rows_reach_their_experts_and_return(case: tuple, random) -> None:
    placement, tokens = case
    sent = sends(placement, even_split(placement, tokens.sum(axis=0)), tokens)
    lists = placement.lists()
    size = 5
    held = [random.sample(range(size), len(experts)) for experts in lists]
    routes = [route_of(placement, sent, rank, held[rank], size) for rank in range(placement.devices)]
    # A row is (rank, number, expert); each rank's are sorted by expert.
    rows = [
        [(rank, number, expert) for number, expert in enumerate(np.repeat(np.arange(len(counts)), counts))]
        for rank, counts in enumerate(tokens)
    ]
    parcels = [
        _split([rows[rank][place] for place in route.order], route.sent) for rank, route in enumerate(routes)
    ]
    back: list[list[list]] = []
    for rank, route in enumerate(routes):
        arrived = [row for parcel in (parcels[of][rank] for of in range(placement.devices)) for row in parcel]
        assert [len(parcels[of][rank]) for of in range(placement.devices)] == route.received
        in_slots = _split([arrived[place] for place in route.arrangement], route.counts.tolist())
        for slot, here in enumerate(in_slots):
            expected = {lists[rank][held[rank].index(slot)]} if slot in held[rank] else set()
            assert {row[2] for row in here} <= expected
        back.append(_split(arrived, route.received))
    for rank, route in enumerate(routes):
        returned = [row for of in range(placement.devices) for row in back[of][rank]]
        collected: list = [None] * len(returned)
        for place, row in zip(route.order, returned, strict=True):
            collected[place] = row
        assert collected == rows[rank]


@given(st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=1, max_size=5))
def test_evenly_spread_tokens_stay_equal_per_rank(tokens: list[list[int]]) -> None:
    counted = np.array(tokens, np.int64)
    spread = spread_evenly(counted)
    assert (spread >= 0).all()
    assert spread.sum(axis=1).tolist() == counted.sum(axis=1).tolist()
    totals = spread.sum(axis=0)
    each, left = divmod(int(counted.sum()), 3)
    assert totals.tolist() == [each + (expert < left) for expert in range(3)]


def _split(rows: list, sizes: list[int]) -> list[list]:
    ends = np.cumsum(sizes).tolist()
    assert ends[-1] == len(rows)
    return [rows[end - size : end] for end, size in zip(ends, sizes, strict=True)]
