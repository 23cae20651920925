"""The fixed price in hindsight, against every price there is on tiny days."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.auction.runs.contenders import HINDSIGHT_PRICE
from bench.auction.runs.day import simulate_day
from bench.auction.runs.hindsight import PARTS, REFINEMENTS, best_price, break_even_prices, hindsight_of
from bench.auction.runs.trials import MEASURES
from bench.workloads.paper import draw
from infra.figures.auction.figures import AuctionFigures
from schemas.auction.settings import FixedPricePolicy
from tests.bench.auction.rows import TINY
from tests.support.examples import seeds

CROWDED = replace(TINY, nodes=1, slots=8, arrivals_per_slot=1.4)
"""A dozen tasks or fewer ask for several times what the node can do."""


def summary_at(setting, seed, price_micros):
    policy = FixedPricePolicy(kind="fixed_price", price_per_thousand_samples_micros=price_micros)
    return simulate_day(setting, seed, lambda _: policy).summary


def welfare_at(setting, seed, price_micros):
    return summary_at(setting, seed, price_micros).part(AuctionFigures).realised_welfare_micros


@pytest.mark.parametrize("seed", seeds(6))
def test_on_a_tiny_day_no_price_at_all_brings_more(seed):
    break_even = break_even_prices(hindsight_of(*draw(CROWDED, seed)))
    assert len(break_even) <= PARTS
    # Between two of these, the same tasks would buy; above the last, nobody.
    every = [0, *break_even, *(price + 1 for price in break_even)]
    best = max(welfare_at(CROWDED, seed, price) for price in every)
    assert MEASURES[HINDSIGHT_PRICE](CROWDED, seed)["welfare_micros"] == best


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_where_there_is_room_a_task_buys_at_its_break_even_price_and_not_above(seed):
    roomy = replace(TINY, nodes=100)
    break_even = break_even_prices(hindsight_of(*draw(roomy, seed)))
    assert len(break_even) > 5
    for place in (0, len(break_even) // 2, len(break_even) - 1):
        price = break_even[place]
        buyers = len([other for other in break_even if other >= price])
        assert summary_at(roomy, seed, price).admitted == buyers
        assert summary_at(roomy, seed, price + 1).admitted == buyers - break_even.count(price)


break_evens = st.lists(st.integers(1, 10**9), max_size=300).map(sorted)


@given(break_evens, st.integers(0, 2**32))
def test_what_is_found_is_no_worse_than_anything_tried_and_no_price_is_among_it(break_even, salt):
    tried = {}

    def welfare(price):
        assert price not in tried
        tried[price] = hash((price, salt)) % 1_000
        return tried[price]

    found = best_price(break_even, welfare)
    assert 0 in tried
    assert tried.keys() <= {0, *break_even}
    assert len(tried) <= PARTS + REFINEMENTS
    assert found == min(price for price in tried if tried[price] == max(tried.values()))


@given(st.integers(0, 999))
def test_a_single_peak_is_found_within_two_per_cent_of_the_tasks(peak):
    found = best_price(range(1, 1_001), lambda price: -abs(price - peak))
    assert abs(found - peak) <= 20


def test_without_a_task_that_buys_there_is_nothing_to_charge():
    assert best_price([], lambda price: 0) == 0
