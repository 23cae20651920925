"""Idle GPUs for the units that run in a plan."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.merging.problems import MergeProblem
from solvers.merging import offers, pricing
from solvers.merging import options as options_module
from solvers.merging.merger import merge
from solvers.merging.options import PlanOptions, options_of
from solvers.merging.pricing import grow_shares
from solvers.merging.program import incumbent
from tests.solvers.merging.test_merger import Costs, helped, kind, problem, problems, unit
from tests.support.examples import examples


def offered(asked: MergeProblem, options: PlanOptions) -> offers.Offers:
    return offers.offers_of(asked, options, offers.UnitPrices(0.0, np.zeros(len(asked.units))), 1_000)


@settings(deadline=None, max_examples=examples(150))
@given(problems(), st.integers(0, 2**32 - 1))
def test_growth_worsens_nothing_within_gpus(asked: MergeProblem, seed: int) -> None:
    options = options_of(asked)
    every = offered(asked, options)
    order = np.random.default_rng(seed).permutation(len(every.rows)).tolist()
    rows = every.rows[list(incumbent(every.columns(), asked.gpus, order))]
    after = grow_shares(asked, options, rows)
    assert (after["gpus"] >= rows["gpus"]).all()
    assert (after["saving"] >= rows["saving"]).all()
    assert after["gpus"].sum() <= asked.gpus
    for name in ("first", "second", "is_spatial"):
        assert (after[name] == rows[name]).all()


@settings(deadline=None, max_examples=examples(150))
@given(problems(), st.integers(1, 3))
def test_stated_cost_of_plan_is_true(asked: MergeProblem, of_each: int) -> None:
    """Where each unit is offered few numbers of GPUs, and there is no time to look for better ones."""
    with mock.patch.multiple(offers, _MOST_OFFERS=0, _MOST_PER_UNIT=of_each):
        solution = merge(asked, 0.0)
    costs = Costs(asked)
    assert costs.of(solution) == pytest.approx(solution.objective, rel=1e-9)
    assert solution.bound <= costs.least() * (1 + 1e-9) + 1e-6
    assert solution.bound <= solution.objective


@settings(deadline=None, max_examples=examples(60))
@given(problems())
def test_bound_without_merges_is_below_plans(asked: MergeProblem) -> None:
    with mock.patch.object(options_module, "_MOST_CELLS", 1):
        solution = merge(asked, 30.0)
    costs = Costs(asked)
    assert costs.of(solution) == pytest.approx(solution.objective, rel=1e-9)
    assert solution.bound <= costs.least() * (1 + 1e-9) + 1e-6
    assert solution.bound <= solution.objective


def smallest_shares(asked: MergeProblem, options: PlanOptions) -> np.ndarray:
    """Each unit alone with the fewest GPUs that it may have."""
    rows = offered(asked, options).rows
    alone = rows[rows["second"] < 0]
    _, first = np.unique(alone["first"], return_index=True)
    return np.asarray(alone[first])


def test_idle_gpus_go_to_largest_gain() -> None:
    steep, flat = kind({1: 1.0, 2: 0.5, 4: 0.25}), kind({1: 1.0, 2: 0.99, 4: 0.98})
    asked = problem(5, [steep, flat], [unit("steep", 0), unit("flat", 1)])
    options = options_of(asked)
    rows = smallest_shares(asked, options)
    assert rows["gpus"].tolist() == [1, 1]
    assert grow_shares(asked, options, rows)["gpus"].tolist() == [4, 1]


def test_a_merge_grows_as_one() -> None:
    steps = kind({gpus: 1.0 / gpus**0.9 for gpus in range(1, 9)})
    asked = problem(8, [steps], [unit("a"), unit("b")], [helped(0, 0, 0.3)])
    options = options_of(asked)
    rows = offered(asked, options).rows
    merged = rows[(rows["second"] >= 0) & (rows["gpus"] == 1)][:1]
    after = grow_shares(asked, options, merged)
    assert after["gpus"].tolist() == [8]
    (same,) = rows[(rows["first"] == merged["first"][0]) & (rows["second"] >= 0) & (rows["gpus"] == 8)]
    assert after["saving"][0] == pytest.approx(same["saving"])


def test_gain_below_switch_grows_nothing() -> None:
    asked = problem(2, [kind({1: 1.0, 2: 0.99})], [unit("a", part="donor", gpus=1)], switch_s=30.0)
    options = options_of(asked)
    rows = smallest_shares(asked, options)
    assert grow_shares(asked, options, rows)["gpus"].tolist() == [1]


def test_sampled_gpu_counts_include_both_ends() -> None:
    steps = kind({gpus: 1.0 / gpus**0.9 for gpus in range(1, 101)})
    asked = problem(100, [steps], [unit("a")])
    options = options_of(asked)
    rows = smallest_shares(asked, options)
    with mock.patch.object(pricing, "_MOST_CELLS", 8):
        assert grow_shares(asked, options, rows)["gpus"].tolist() == [100]
        looked_at = pricing._examined(100, 1)
    assert len(looked_at) <= 8
    assert {0, 99} <= set(looked_at.tolist())
