"""The multiple-choice knapsack against brute force and against an exact model."""

import itertools
import math

import pyomo.environ as pyo
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyomo.contrib.solver.solvers.highs import Highs

from solvers.elastic.knapsack import ItemGroup, best_choice
from tests.support.examples import examples

VALUES = st.integers(-2, 6).map(float) | st.floats(-1.0, 50.0).map(lambda value_s: round(value_s, 3))
WEIGHTS = st.lists(st.integers(1, 9), max_size=4, unique=True).map(sorted)


@st.composite
def groups(draw, values_s, max_groups):
    unit = draw(st.sampled_from([1, 1, 2, 3]))
    weights = draw(st.lists(WEIGHTS, max_size=max_groups))
    return [
        ItemGroup(
            [weight * unit for weight in each],
            draw(st.lists(values_s, min_size=len(each), max_size=len(each))),
        )
        for each in weights
    ]


def weight_gpus(of, choice):
    return sum(group.weights_gpus[item] for group, item in zip(of, choice, strict=True) if item is not None)


def value_s(of, choice):
    return math.fsum(group.values_s[item] for group, item in zip(of, choice, strict=True) if item is not None)


def choices_that_fit(of, capacity_gpus):
    options = [[None, *range(len(group.weights_gpus))] for group in of]
    return (each for each in itertools.product(*options) if weight_gpus(of, each) <= capacity_gpus)


def preference(of, choice):
    weights = [
        0 if item is None else group.weights_gpus[item] for group, item in zip(of, choice, strict=True)
    ]
    return (value_s(of, choice), -sum(weights), weights)


@settings(max_examples=examples(300), deadline=None)
@given(groups(st.integers(-2, 6).map(float), 5), st.integers(-1, 40))
def test_ties_choose_lightest_then_earliest_groups(of, capacity_gpus):
    fitting = list(choices_that_fit(of, capacity_gpus))
    expected = max(fitting, key=lambda choice: preference(of, choice)) if fitting else (None,) * len(of)
    assert best_choice(of, capacity_gpus) == list(expected)


@settings(max_examples=examples(200), deadline=None)
@given(groups(VALUES, 5), st.integers(0, 40))
def test_choice_has_the_best_value(of, capacity_gpus):
    choice = best_choice(of, capacity_gpus)
    best_s = max(value_s(of, each) for each in choices_that_fit(of, capacity_gpus))
    assert weight_gpus(of, choice) <= capacity_gpus
    assert value_s(of, choice) == pytest.approx(best_s, abs=1e-9)


@settings(max_examples=examples(200), deadline=None)
@given(groups(VALUES, 5), st.integers(0, 40))
def test_too_many_groups_lose_one_item(of, capacity_gpus):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("solvers.elastic.knapsack.MOST_CELLS", 0)
        choice = best_choice(of, capacity_gpus)
    best_s = max(value_s(of, each) for each in choices_that_fit(of, capacity_gpus))
    item_s = max((each for group in of for each in group.values_s), default=0.0)
    assert weight_gpus(of, choice) <= capacity_gpus
    assert best_s - max(item_s, 0.0) - 1e-9 <= value_s(of, choice) <= best_s + 1e-9


def test_thousands_of_wide_groups_are_fast():
    # A table of them would take 2 GB.
    of = [
        ItemGroup(range(8, 264, 8), [float(gpus**0.5 * (1 + n % 7)) for gpus in range(8, 264, 8)])
        for n in range(8_000)
    ]
    choice = best_choice(of, 960_007)
    assert 960_000 - 256 <= weight_gpus(of, choice) <= 960_007


@settings(max_examples=examples(30), deadline=None)
@given(groups(VALUES, 12), st.integers(1, 80))
def test_it_is_worth_what_an_exact_solver_finds(of, capacity_gpus):
    model = pyo.ConcreteModel()
    model.x = pyo.VarList(domain=pyo.Binary)
    weight, value = [], []
    model.one = pyo.ConstraintList()
    for group in of:
        taken = [model.x.add() for _ in group.weights_gpus]
        if taken:
            model.one.add(sum(taken) <= 1)
        weight += [gpus * x for gpus, x in zip(group.weights_gpus, taken, strict=True)]
        value += [gain_s * x for gain_s, x in zip(group.values_s, taken, strict=True)]
    if not weight:
        assert best_choice(of, capacity_gpus) == [None] * len(of)
        return
    model.room = pyo.Constraint(expr=sum(weight) <= capacity_gpus)
    model.objective = pyo.Objective(expr=sum(value), sense=pyo.maximize)
    solver = Highs()
    solver.config.rel_gap = 0.0
    exact = solver.solve(model).incumbent_objective
    assert value_s(of, best_choice(of, capacity_gpus)) == pytest.approx(exact, abs=1e-6)


@given(groups(VALUES, 6), st.integers(0, 40), st.integers(2, 7))
def test_the_unit_of_weight_makes_no_difference(of, capacity_gpus, unit):
    scaled = [ItemGroup([unit * weight for weight in group.weights_gpus], group.values_s) for group in of]
    assert best_choice(scaled, unit * capacity_gpus + unit - 1) == best_choice(of, capacity_gpus)


def test_figure_3_6_favours_a():
    # Jobs A and B of Table 3.4, with 2 GPUs per worker of A and 1 of B.
    a = ItemGroup([2], [50.0])
    b = ItemGroup([1, 2, 3, 4], [20.0, 30.0, 36.0, 40.0])
    assert best_choice([a, b], 4) == [0, 1]
    assert best_choice([a, b], 5) == [0, 2]
    assert best_choice([a, b], 1) == [None, 0]


def test_no_groups_and_no_room():
    assert best_choice([], 10) == []
    assert best_choice([ItemGroup([], []), ItemGroup([3], [1.0])], 2) == [None, None]
    assert best_choice([ItemGroup([1], [1.0])], -5) == [None]


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (ItemGroup([1, 2], [1.0]), "group 1 has 2 weights and 1 values"),
        (ItemGroup([0], [1.0]), "item 0 of group 1 weighs 0 GPUs"),
        (ItemGroup([2, 2], [1.0, 2.0]), "item 1 of group 1 weighs 2 GPUs"),
        (ItemGroup([1, 2], [1.0, math.nan]), "item 1 of group 1 weighs 2 GPUs and is worth nan s"),
        (ItemGroup([1], [math.inf]), "worth inf s"),
    ],
)
def test_groups_that_break_the_rules_are_refused(group, message):
    with pytest.raises(ValueError, match=message):
        best_choice([ItemGroup([1], [1.0]), group], 10)
