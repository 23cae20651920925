"""Grants of a round so far: granted GPUs are no longer idle, and released ones are idle again."""

import pytest

from solvers.elastic.demand import Allocation, WorkerGrant
from tests.support.elastic_rounds import demand, training


def test_released_gpus_are_idle_and_gained_not() -> None:
    job = demand("a", 0, (2, 6), workers=5, gpus_per_worker=2)
    allocation = Allocation([job], training(3.0))
    assert (allocation.idle_gpus("training"), allocation.flexible_gpus("training")) == (3, 6)
    allocation.resize(job, 2)
    assert (allocation.idle_gpus("training"), allocation.flexible_gpus("training")) == (9, 0)
    assert allocation.grow(job, 10) == 4
    assert (allocation.idle_gpus("training"), allocation.flexible_gpus("training")) == (1, 8)
    assert allocation.grants() == [WorkerGrant("a", 6, "training", "training")]


def test_unchanged_job_is_granted_nothing() -> None:
    job = demand("a", 0, (2, 6), workers=5)
    allocation = Allocation([job], training(3.0))
    allocation.resize(job, 2)
    assert allocation.grow(job, 3) == 3
    assert allocation.grants() == []


def test_flexible_workers_keep_their_pool() -> None:
    job = demand("a", 0, (2, 6), workers=3, spans_pools=True, flexible_pool="loaned", spanning_speed=0.5)
    allocation = Allocation([job], {"training": 8.0, "loaned": 2.0})
    assert [allocation.speed(job, workers) for workers in (2, 3, 4)] == [2.0, 1.5, 2.0]
    assert allocation.grow(job, 9) == 2
    assert allocation.grants() == [WorkerGrant("a", 5, "training", "loaned")]
    assert allocation.idle_gpus("training") == 8


def test_grants_are_in_the_order_of_arrival() -> None:
    allocation = Allocation([demand("b", 1, (1, 2), workers=1)], training(8.0))
    for job in (demand("c", 2), demand("a", 0)):
        allocation.start(job, "training")
    allocation.grow(demand("b", 1, (1, 2), workers=1), 1)
    assert [grant.job_id for grant in allocation.grants()] == ["a", "b", "c"]


def test_idle_gpus_below_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="expected none below 0"):
        Allocation([], {"training": 8.0, "loaned": -1.0})
    assert Allocation([], training(-1e-12)).idle_gpus("training") == 0
