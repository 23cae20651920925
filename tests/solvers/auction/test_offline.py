"""The solvers of problem P against brute force, against each other, and where there is nothing to solve."""

import math
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.auction.market.market import Placement
from solvers.auction.offline.columns import FIRST_LENGTH, descend, solve_by_columns
from solvers.auction.offline.instance import (
    OfferedTask,
    PlannedTask,
    keep_what_fits,
    violations,
    welfare_micros,
)
from solvers.auction.offline.relaxation import Relaxation
from solvers.auction.offline.schedule_free import (
    MOST_SCHEDULE_FREE_NODE_SLOTS,
    offline_optimum,
    solve_schedule_free,
)
from solvers.auction.offline.solution import OfflineSolution, trivial_bound_micros
from tests.support.examples import examples
from tests.support.instances import (
    FIRST_SLOT,
    NO_VENDOR,
    brute_force_micros,
    empty_instance,
    random_instance,
)
from tests.support.markets import demand, fleet

LONG_S = 600.0
"""More than any of these takes."""
RANDOM = st.randoms(use_true_random=False)
SOLVERS = (solve_schedule_free, solve_by_columns, offline_optimum)


def assert_sound(instance, solution):
    assert violations(instance, solution.plans) == []
    assert welfare_micros(instance, solution.plans) == solution.welfare_micros
    assert 0 <= solution.welfare_micros <= solution.bound_micros <= trivial_bound_micros(instance)


@settings(max_examples=examples(80), deadline=None)
@given(RANDOM)
def test_schedule_free_form_matches_brute_force(rng):
    instance = random_instance(rng, tasks=rng.randint(0, 4), slots=rng.randint(1, 3))
    solution = solve_schedule_free(instance, LONG_S, 0.0)
    assert_sound(instance, solution)
    assert solution.status == "optimal"
    assert solution.welfare_micros == brute_force_micros(instance)


@settings(max_examples=examples(80), deadline=None)
@given(RANDOM)
def test_optimum_lies_between_welfare_and_bound(rng):
    instance = random_instance(rng, tasks=rng.randint(0, 4), slots=rng.randint(1, 3))
    solution = solve_by_columns(instance, LONG_S, 0.0)
    assert_sound(instance, solution)
    assert solution.welfare_micros <= brute_force_micros(instance) <= solution.bound_micros


@pytest.mark.parametrize("seed", range(12))
def test_columns_match_schedule_free_form(seed):
    instance = random_instance(random.Random(seed), tasks=8, nodes=3, slots=5, is_empty=seed % 2 == 0)
    exact = solve_schedule_free(instance, LONG_S, 0.0)
    by_columns = solve_by_columns(instance, LONG_S, 0.0)
    assert exact.status == "optimal"
    assert 0.95 * exact.welfare_micros <= by_columns.welfare_micros <= exact.welfare_micros
    assert exact.welfare_micros <= by_columns.bound_micros


@pytest.mark.parametrize("solve", SOLVERS)
def test_an_instance_without_tasks_is_solved(solve):
    solution = solve(empty_instance(fleet((1, 8.0, 8.0)), 0, []), LONG_S, 0.01)
    assert (solution.status, solution.plans, solution.welfare_micros, solution.bound_micros) == (
        "optimal",
        (),
        0,
        0,
    )
    assert solution.gap == 0.0


@pytest.mark.parametrize("solve", SOLVERS)
@pytest.mark.parametrize(
    ("work_samples", "samples", "gib", "bid_micros"),
    [
        pytest.param(9, 4, 1.0, 100, id="more work than two slots do"),
        pytest.param(4, 9, 1.0, 100, id="more samples per slot than a node has"),
        pytest.param(4, 4, 9.0, 100, id="more memory than a node has"),
        pytest.param(4, 4, 1.0, 4, id="a bid of no more than its cost"),
    ],
)
def test_unfit_or_worthless_task_is_left_out(solve, work_samples, samples, gib, bid_micros):
    of = fleet((1, 8.0, 8.0))
    task = OfferedTask(
        "j", bid_micros, demand(of, work_samples, [samples], gib), NO_VENDOR, FIRST_SLOT, FIRST_SLOT + 1
    )
    solution = solve(empty_instance(of, 2, [task], [8.0]), LONG_S, 0.01)
    assert (solution.status, solution.plans, solution.welfare_micros) == ("optimal", (), 0)


def test_large_tasks_do_not_share_node():
    # The sums of Eqs. 5b and 5c would let three nodes take all five tasks of 0.6 of a node.
    of = fleet((3, 10.0, 10.0))
    tasks = [
        OfferedTask(f"j{n}", 10, demand(of, 6, [6], 1.0), NO_VENDOR, FIRST_SLOT, FIRST_SLOT) for n in range(5)
    ]
    solution = solve_by_columns(empty_instance(of, 1, tasks), LONG_S, 0.0)
    assert (solution.welfare_micros, solution.bound_micros, solution.status) == (30, 30, "optimal")


@pytest.mark.parametrize("solve", SOLVERS)
def test_timed_out_solver_keeps_valid_bound(solve):
    instance = random_instance(random.Random(5), tasks=60, nodes=4, slots=12, is_empty=True)
    reached = offline_optimum(instance, LONG_S, 0.05)
    hurried = solve(instance, 0.0, 0.0)
    assert_sound(instance, hurried)
    assert hurried.status == "feasible"
    assert 0 < hurried.welfare_micros < hurried.bound_micros
    assert reached.welfare_micros <= hurried.bound_micros


@pytest.mark.parametrize("solve", SOLVERS)
def test_a_solver_writes_nothing_to_the_terminal(solve, capfd):
    solve(random_instance(random.Random(1), tasks=8), LONG_S, 0.05)
    assert capfd.readouterr() == ("", "")


def test_positive_bound_without_plans_is_no_solution():
    instance = random_instance(random.Random(5), tasks=10, is_empty=True)
    nothing = OfflineSolution.of(instance, (), math.inf, 0.01, 0.0)
    assert (nothing.status, nothing.welfare_micros) == ("none", 0)
    assert nothing.bound_micros == trivial_bound_micros(instance) > 0
    assert math.isinf(nothing.gap)


def test_violating_plans_of_solver_are_detected():
    of = fleet((1, 8.0, 8.0))
    task = OfferedTask("j", 9, demand(of, 8, [4], 1.0), NO_VENDOR, FIRST_SLOT, FIRST_SLOT + 1)
    short = PlannedTask("j", NO_VENDOR[0], Placement((FIRST_SLOT,), (0,)))
    with pytest.raises(ValueError, match=r"1 violations of problem P .* trains 4 of 8"):
        OfflineSolution.of(empty_instance(of, 2, [task]), [short], math.inf, 0.01, 0.0)


def test_less_valuable_conflicts_are_dropped():
    of = fleet((1, 8.0, 8.0))
    tasks = [
        OfferedTask(f"j{n}", 9 + n, demand(of, 4, [4], 3.0), NO_VENDOR, FIRST_SLOT, FIRST_SLOT)
        for n in range(3)
    ]
    plans = [PlannedTask(task.job_id, NO_VENDOR[0], Placement((FIRST_SLOT,), (0,))) for task in tasks]
    kept = keep_what_fits(empty_instance(of, 1, tasks), plans)
    assert [plan.job_id for plan in kept] == ["j2", "j1"]


def test_descent_prices_bound_the_master(monkeypatch):
    instance = random_instance(random.Random(2), tasks=120, nodes=4, slots=12, is_empty=True)
    monkeypatch.setattr("solvers.auction.offline.columns.MOST_STALE_PER_TASK", 0)
    by_master = solve_by_columns(instance, LONG_S, 0.0)
    monkeypatch.setattr("solvers.auction.offline.columns.MOST_MASTER_TASKS", 50)
    monkeypatch.setattr("solvers.auction.offline.columns.SAMPLE_TASKS", 40)
    by_descent = solve_by_columns(instance, LONG_S, 0.0)
    assert_sound(instance, by_descent)
    assert by_master.welfare_micros <= by_descent.bound_micros
    assert by_master.bound_micros <= 1.001 * by_descent.bound_micros
    assert by_descent.bound_micros <= 1.05 * by_master.bound_micros


def test_greedy_plans_near_bound_end_search(monkeypatch):
    instance = random_instance(random.Random(2), tasks=20, nodes=40, slots=12, is_empty=True)
    monkeypatch.setattr(Relaxation, "generate", None)
    solution = solve_by_columns(instance, LONG_S, 0.01)
    assert_sound(instance, solution)
    assert solution.status == "optimal"


@pytest.mark.parametrize("seek", ["columns", "descent"])
def test_price_search_stops_at_sufficient_bound(seek):
    instance = random_instance(random.Random(2), tasks=120, nodes=4, slots=12, is_empty=True)
    relaxation = Relaxation(instance)
    unpriced_micros = relaxation.unpriced.bound_micros

    def bound_micros(enough_micros):
        deadline_s = time.perf_counter() + LONG_S
        if seek == "columns":
            return relaxation.generate(enough_micros, deadline_s).bound_micros
        prices = relaxation.no_prices()
        of = relaxation.candidates
        return descend(relaxation, of, 1.0, prices, FIRST_LENGTH, enough_micros, deadline_s).bound_micros

    least_micros = bound_micros(0.0)
    between_micros = (least_micros + unpriced_micros) / 2
    assert bound_micros(unpriced_micros) == unpriced_micros
    assert least_micros < bound_micros(between_micros) <= between_micros < unpriced_micros


def test_large_instance_uses_columns():
    instance = random_instance(random.Random(12), tasks=300, nodes=12, slots=24, is_empty=True)
    nodes = len(instance.fleet.nodes)
    node_slots = sum(nodes * (task.last_slot - task.first_slot + 1) for task in instance.tasks)
    assert node_slots > MOST_SCHEDULE_FREE_NODE_SLOTS
    solution = offline_optimum(instance, LONG_S, 0.02)
    assert_sound(instance, solution)
    assert solution.status == "optimal"
    assert solution.gap <= 0.02
