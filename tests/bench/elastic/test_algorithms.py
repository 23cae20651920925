"""The instances behind the figures of elastic scheduling are what they claim to be."""

import pytest

from bench.elastic.algorithms import measure_allocation
from bench.elastic.random_instances import BusyCell, knapsack_groups, lent_servers
from schemas.elastic.outcomes import JobResized
from solvers.elastic.lent import lent_by


@pytest.mark.parametrize("has_elastic", [False, True])
def test_loaned_servers_are_used_as_in_thesis(has_elastic):
    cluster = lent_servers(3, 200, has_elastic)
    assert 0.88 < 1 - cluster.free_gpus("loaned") / 1_600 <= 0.92
    jobs = lent_by(cluster, cluster.servers()).jobs
    gpus = [job.gpus_per_worker * sum(job.workers.values()) for job in jobs]
    assert sum(each == 1 for each in gpus) == max(gpus.count(each) for each in set(gpus))
    assert sum(each for each in gpus if each >= 8) > 0.6 * sum(gpus)
    assert sum(len(job.workers) > 1 for job in jobs) > 20
    assert any(job.min_workers < sum(job.workers.values()) for job in jobs) == has_elastic


def test_the_same_seed_makes_the_same_instances():
    assert lent_servers(1, 30, True).state() == lent_servers(1, 30, True).state()
    assert lent_servers(1, 30, True).state() != lent_servers(2, 30, True).state()
    assert knapsack_groups(1) == knapsack_groups(1) != knapsack_groups(2)


def resized_in_round(busy: BusyCell) -> list[JobResized]:
    outcomes = [decision.outcome for decision in busy.cell().handle(busy.tick)]
    return [outcome for outcome in outcomes if isinstance(outcome, JobResized)]


def test_busy_round_preempts_running_for_waiting_jobs():
    resized = resized_in_round(BusyCell(0))
    assert [outcome.reason for outcome in resized].count("started") > 450
    assert sum(outcome.reason == "scaled_in" for outcome in resized) > 100


def test_the_knapsack_has_the_thesis_number_of_items():
    assert sum(len(group.weights_gpus) for group in knapsack_groups(0)) == 354


@pytest.mark.long
def test_allocation_is_measured():
    measured = {each.name: each.value for each in measure_allocation(True, 0).measurements}
    assert set(measured) == {"allocation_round_ms", "knapsack_ms"}
    assert all(value > 0 for value in measured.values())
