"""Covers of a task's work at additive prices, against brute force, whatever the steps that are allowed."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.auction.mechanism.counts import Cover
from solvers.auction.mechanism.cover import by_cost, cheapest_cover
from solvers.auction.mechanism.pricing import AdditivePlan, cheapest_plan
from tests.support.examples import examples

ENDLESS = 10**15
STEPS = st.sampled_from([0, 1, 7, 50, 400, ENDLESS])
CUTOFFS = st.one_of(st.just(math.inf), st.floats(0, 40))


@st.composite
def problems(draw):
    """Costs (slots, classes), samples per class and work: equal or near speeds and equal costs often."""
    classes, slots = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    fastest = draw(st.sampled_from([1, 3, 10, 1_219]))
    speed = st.one_of(st.just(fastest), st.integers(max(1, fastest - 3), fastest), st.integers(1, fastest))
    samples = draw(st.lists(speed, min_size=classes, max_size=classes))
    cost = st.one_of(st.sampled_from([0.0, 1.0, 2.0, 3.5]), st.floats(0, 10), st.just(math.inf))
    costs = draw(st.lists(cost, min_size=slots * classes, max_size=slots * classes))
    work = draw(st.integers(1, max(samples) * slots))
    return np.array(costs).reshape(slots, classes), np.array(samples, np.int64), work


def every_cover(costs, samples, work, first_slot=0):
    """The costs of all covers that begin in `first_slot` or later."""
    slots, classes = costs.shape
    for picks in itertools.product(range(-1, classes), repeat=slots - first_slot):
        taken = [(first_slot + slot, index) for slot, index in enumerate(picks) if index >= 0]
        if sum(int(samples[index]) for _, index in taken) >= work:
            yield math.fsum(costs[slot, index] for slot, index in taken)


def assert_gap_is_true(found: Cover | AdditivePlan, least: float, cutoff: float, steps: int) -> None:
    """Assert that a result lies between the true least value and its stated gap above it; an endless search
    finds the least, or proves that it is not below the cutoff."""
    if least < cutoff:
        assert found.bound <= least * (1 + 1e-9)
        assert least * (1 - 1e-9) <= found.cost < math.inf
        if steps == ENDLESS:
            assert found.cost == pytest.approx(found.bound, rel=1e-9)
    elif steps == ENDLESS:
        assert found.bound >= cutoff * (1 - 1e-9)


@settings(max_examples=examples(600), deadline=None)
@given(problems(), STEPS, CUTOFFS)
def test_found_cover_has_true_gap(problem, steps, cutoff):
    costs, samples, work = problem
    least = min(every_cover(costs, samples, work), default=math.inf)
    found = cheapest_cover(costs, by_cost(costs), samples, work, cutoff, steps)
    if found.cost < math.inf:
        slots = np.flatnonzero(found.chosen >= 0)
        assert samples[found.chosen[slots]].sum() >= work
        assert found.cost == pytest.approx(costs[slots, found.chosen[slots]].sum(), rel=1e-12)
    assert_gap_is_true(found, least, cutoff, steps)


@settings(max_examples=examples(400), deadline=None)
@given(problems(), STEPS, CUTOFFS, st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=3))
def test_the_vendors_and_covers_found_have_true_gaps(problem, steps, cutoff, vendors):
    costs, samples, work = problem
    offered = {delay: price for delay, price in [*vendors, (0, 9)] if delay < len(costs)}
    # Undominated: the longer the delay, the lower the price.
    delays = [
        delay for delay in sorted(offered) if all(offered[delay] < offered[d] for d in offered if d < delay)
    ]
    least = min(
        (
            offered[delay] + cost
            for delay in delays
            for cost in every_cover(costs, samples, work, first_slot=delay)
        ),
        default=math.inf,
    )
    prices = np.array([offered[delay] for delay in delays], np.float64)
    found = cheapest_plan(costs.copy(), samples, work, np.array(delays, np.int64), prices, cutoff, steps)
    assert_gap_is_true(found, least, cutoff, steps)


@pytest.mark.parametrize("samples", [(1,), (1, 1), (1, 2)])
def test_prices_beyond_whole_floats_hide_no_cover(samples):
    # At 2^53 a float and the next whole number are the same.
    costs = np.full((4, len(samples)), 2.0**60)
    found = cheapest_cover(costs, by_cost(costs), np.array(samples, np.int64), 3, math.inf, ENDLESS)
    assert found.cost == found.bound == (3 if max(samples) == 1 else 2) * 2.0**60
