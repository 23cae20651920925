"""A run without reports from any node is given up after a time, whatever the policy."""

from collections.abc import Callable

import pytest

from schemas.base import Outcome
from schemas.decisions import JobRefunded
from schemas.elastic.commands import WorkersAssigned
from schemas.experts.commands import RanksAssigned
from schemas.merging.commands import ProfileOrdered
from schemas.merging.outcomes import JobForetold
from streams.policies.orders import OrderClock, retry_delay_s
from tests.support import elastic, merging, moe
from tests.support.cells import Bench

TIMEOUT_S = 100.0
STEP_S = 5.0


def elapse(bench: Bench, tick: Callable, seconds: float, step_s: float = STEP_S) -> list[Outcome]:
    """Let time pass, in which no node reports anything."""
    began_s = bench.cell.time_s or 0.0
    outcomes: list[Outcome] = []
    for number in range(1, int(seconds / step_s) + 1):
        outcomes += bench.send(tick(began_s + number * step_s))
    return outcomes


def of_elastic() -> tuple[Bench, Callable, type]:
    bench = elastic.ElasticBench()
    cell = elastic.elastic_cell(order_timeout_s=TIMEOUT_S, interval_s=STEP_S)
    bench.send(cell, elastic.tick(0.0), elastic.submit("j"))
    return bench, elastic.tick, WorkersAssigned


def of_experts() -> tuple[Bench, Callable, type]:
    bench = moe.MoeBench()
    bench.send(moe.moe_cell(order_timeout_s=TIMEOUT_S), moe.tick(0.0), moe.submit("j", moe.training(1)))
    return bench, moe.tick, RanksAssigned


CASES = pytest.mark.parametrize("case", [of_elastic, of_experts], ids=["elastic", "experts"])


@CASES
def test_run_that_never_begins_is_tried_thrice(case: Callable) -> None:
    bench, tick, order = case()
    outcomes = elapse(bench, tick, 6 * TIMEOUT_S)
    assert sum(isinstance(each, order) for each in outcomes) == 3
    (refunded,) = [each for each in outcomes if isinstance(each, JobRefunded)]
    assert refunded.reason == "run_failed"
    assert (refunded.facts["case"], refunded.facts["run_id"]) == ("silent", "3/j")
    assert refunded.facts["silent_s"] > TIMEOUT_S
    assert not bench.cell.jobs.live


@CASES
def test_a_clock_that_jumps_gives_nothing_up(case: Callable) -> None:
    bench, tick, order = case()
    elapse(bench, tick, 20.0)
    outcomes = elapse(bench, tick, 9 * 3_600.0, step_s=3_600.0)
    assert not [each for each in outcomes if isinstance(each, order)]


def test_silent_profile_run_is_tried_thrice() -> None:
    bench = merging.MergingBench()
    cell = merging.merging_cell(1, 1, order_timeout_s=TIMEOUT_S, profile_limit_s=10.0)
    bench.send(cell, merging.tick(0.0))
    outcomes = bench.send(merging.submit("a"))
    outcomes += elapse(bench, merging.tick, 8 * TIMEOUT_S)
    assert sum(isinstance(each, ProfileOrdered) for each in outcomes) == 3
    (told,) = [each for each in outcomes if isinstance(each, JobForetold)]
    assert told.reason == "profile_failed"
    assert (told.facts["case"], told.facts["run_id"]) == ("silent", "3/a")


def test_time_without_listening_does_not_count() -> None:
    clock = OrderClock("c", TIMEOUT_S)
    clock.advance(0.0)
    clock.advance(86_400.0)
    assert clock.elapsed_s == TIMEOUT_S / 10
    clock.advance(86_403.0)
    assert clock.elapsed_s == TIMEOUT_S / 10 + 3.0
    assert not clock.is_lost(0.0)
    for number in range(40):
        clock.advance(86_403.0 + 3.0 * number)
    assert clock.is_lost(0.0)
    assert not clock.is_lost(0.0, quiet_s=10.0), "it was expected to say nothing for longer"


def test_each_attempt_waits_longer_than_the_one_before() -> None:
    assert [retry_delay_s(failures) for failures in (1, 2, 3)] == [5.0, 10.0, 20.0]
