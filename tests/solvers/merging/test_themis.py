"""Themis: leases, who bids, and the auction against every allocation there is."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.merging.rival_schemes import Themis, partial_allocation
from solvers.merging.scheme_interface import Contender, fixed_size
from tests.support.contenders import NOW_S, contender, crowds
from tests.support.examples import examples


@st.composite
def auctions(draw: st.DrawFn) -> tuple[list[dict[int, float]], int]:
    """Up to four bidders' rho by size, and the GPUs."""
    bids = []
    for _ in range(draw(st.integers(0, 4))):
        sizes = draw(st.sampled_from([(1, 2, 4), (1, 2, 3), (2, 4), (1,)]))
        bids.append({size: draw(st.floats(0.01, 100.0)) for size in (0, *sizes)})
    return bids, draw(st.integers(0, 8))


def product(bids: list[dict[int, float]], sizes: tuple[int, ...]) -> float:
    """Return the product of all 1 / rho."""
    return math.prod(1.0 / bid[size] for bid, size in zip(bids, sizes, strict=True))


def allocations(bids: list[dict[int, float]], gpus: int) -> list[tuple[int, ...]]:
    """All that fit."""
    return [sizes for sizes in itertools.product(*bids) if sum(sizes) <= gpus]


def paid(bids: list[dict[int, float]], gpus: int, sizes: tuple[int, ...]) -> list[int]:
    """Return the kept part of an allocation, straight from the definition of the hidden payments."""
    kept = []
    for index, size in enumerate(sizes):
        others = bids[:index] + bids[index + 1 :]
        with_it = product(others, sizes[:index] + sizes[index + 1 :])
        without_it = max(product(others, each) for each in allocations(others, gpus))
        share = with_it / without_it
        kept.append(max(each for each in bids[index] if each <= share * size * (1 + 1e-9)))
    return kept


@given(auctions())
@settings(max_examples=examples(300))
def test_winner_keeps_part_that_others_lose(
    auction: tuple[list[dict[int, float]], int],
) -> None:
    bids, gpus = auction
    highest = max(product(bids, sizes) for sizes in allocations(bids, gpus))
    best = [sizes for sizes in allocations(bids, gpus) if product(bids, sizes) >= highest * (1 - 1e-9)]
    assert partial_allocation(bids, gpus) in [paid(bids, gpus, sizes) for sizes in best]


def test_a_bidder_alone_pays_nothing() -> None:
    assert partial_allocation([{0: 4.0, 1: 2.0, 2: 1.0}], 2) == [2]


def test_harmful_bidder_pays_with_gpus() -> None:
    # Together: 3 and 1 of 4 GPUs. Without the first, the second has 2 and a rho of 1 instead of 2, so that
    # the first keeps half of 3; the first would be no better off without the second.
    bids = [{0: 8.0, 1: 6.0, 2: 5.0, 3: 1.0}, {0: 3.0, 1: 2.0, 2: 1.0}]
    assert partial_allocation(bids, 4) == [1, 1]


def test_rho_compares_with_fair_share() -> None:
    job = contender(
        "a",
        0,
        {1: 500.0, 2: 300.0, 4: 200.0},
        total_s={1: 1_000.0, 2: 600.0, 4: 400.0},
        submitted_s=NOW_S - 300.0,
    )
    # A fair share is 2 of 8 GPUs; with nothing, a lease of 600 s is waited for.
    assert Themis().bid(job, 8, 4, NOW_S) == pytest.approx({0: 2.0, 1: 800 / 600, 2: 1.0, 4: 500 / 600})
    # With twice as many jobs as GPUs it would have one GPU half of the time.
    assert Themis().bid(job, 4, 8, NOW_S)[1] == pytest.approx(800 / 2_000)


@pytest.mark.parametrize(
    ("held_s", "is_leased"),
    [
        (0.0, True),
        (599.0, True),
        (600.0, False),
        (719.0, False),
        (720.0, True),
        (1_199.0, True),
        (1_200.0, False),
    ],
)
def test_lease_ends_at_next_multiple(held_s: float, is_leased: bool) -> None:
    job = contender("a", 0, {4: 900.0}, gpus=4, held_s=held_s)
    assert Themis().is_leased(job) is is_leased


def test_ended_lease_goes_to_worst_off() -> None:
    holds = contender("holds", 0, {4: 900.0}, submitted_s=NOW_S - 600.0, gpus=4, held_s=300.0)
    waits = contender("waits", 1, {4: 900.0}, submitted_s=NOW_S - 500.0)
    assert Themis().allocate([holds, waits], 4, NOW_S) == {"holds": 4}
    over = holds._replace(held_s=600.0)
    assert Themis().allocate([over, waits], 4, NOW_S) == {"waits": 4}


def test_ended_lease_stays_without_worse_off() -> None:
    holds = contender("holds", 0, {4: 9_000.0}, submitted_s=NOW_S - 20_000.0, gpus=4, held_s=600.0)
    waits = contender("waits", 1, {4: 9_000.0})
    assert Themis().allocate([holds, waits], 4, NOW_S) == {"holds": 4}


def test_unbid_rest_goes_to_worst_off() -> None:
    jobs = [
        contender(name, arrival, {1: 1_000.0, 2: 600.0}, submitted_s=NOW_S - age_s)
        for arrival, (name, age_s) in enumerate([("best", 10.0), ("worst", 900.0), ("second", 500.0)])
    ]
    assert Themis().allocate(jobs, 3, NOW_S) == {"worst": 2, "second": 1}
    assert Themis().allocate(jobs, 4, NOW_S) == {"worst": 2, "second": 1, "best": 1}
    assert Themis().allocate(jobs, 5, NOW_S) == {"worst": 2, "second": 2, "best": 1}


@given(crowd=crowds())
@settings(max_examples=examples(300))
def test_usable_gpus_never_idle(crowd: tuple[list[Contender], int]) -> None:
    jobs, gpus = crowd
    themis = Themis()
    granted = themis.allocate(jobs, gpus, NOW_S)
    left = gpus - sum(granted.values())
    for job in jobs:
        size = granted.get(job.job_id, 0)
        if themis.is_leased(job):
            assert size == job.gpus
        else:
            following = [each for each in job.remaining_s if size < each <= fixed_size(job, gpus)][:1]
            assert all(each - size > left for each in following)
