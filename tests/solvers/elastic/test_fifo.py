"""The baseline and opportunistic scheduling: jobs wait for those before them in the queue."""

from hypothesis import given

from solvers.elastic.demand import WorkerGrant
from solvers.elastic.heuristics import FirstInFirstOut, Opportunistic
from tests.support.elastic_rounds import Round, demand, granted_workers, rounds, training


def test_head_of_queue_blocks_others() -> None:
    waiting = [demand("a", 0, (2, 2)), demand("b", 1, (7, 7)), demand("c", 2, (1, 1))]
    assert granted_workers(FirstInFirstOut().allocate(waiting, [], training(8.0))) == {"a": 2}


def test_unplaceable_head_blocks_others_too() -> None:
    waiting = [demand("a", 0, (2, 2), barred_pools=frozenset(["training"])), demand("b", 1, (1, 1))]
    assert FirstInFirstOut().allocate(waiting, [], training(8.0)) == []


def test_unplaceable_head_blocks_its_queue_only() -> None:
    waiting = [
        demand("a", 0, (2, 2), pools=("loaned", "training"), barred_pools=frozenset(["loaned"])),
        demand("b", 1, (1, 1)),
        demand("c", 2, (1, 1), pools=("loaned", "training")),
    ]
    grants = Opportunistic().allocate(waiting, [], {"training": 8.0, "loaned": 8.0})
    assert grants == [WorkerGrant("b", 1, "training", "training")]


def test_elastic_jobs_run_at_base_demand() -> None:
    waiting = [demand("b", 1, (2, 6))]
    running = [demand("a", 0, (2, 6), workers=2)]
    grants = FirstInFirstOut().allocate(waiting, running, training(100.0))
    assert grants == [WorkerGrant("b", 2, "training", "training")]


def test_job_starts_in_first_pool_with_room() -> None:
    waiting = [demand("a", 0, (4, 4), pools=("loaned", "training")), demand("b", 1, (4, 4))]
    grants = FirstInFirstOut().allocate(waiting, [], {"training": 8.0, "loaned": 8 / 3})
    assert grants == [
        WorkerGrant("a", 4, "training", "training"),
        WorkerGrant("b", 4, "training", "training"),
    ]


@given(rounds())
def test_baseline_starts_in_order_without_resizing(round_: Round) -> None:
    grants = FirstInFirstOut().allocate(round_.waiting, round_.running, round_.free_gpus)
    started = [grant.job_id for grant in grants]
    assert started == [job.job_id for job in round_.waiting[: len(started)]]


def test_fungible_jobs_wait_for_idle_servers() -> None:
    waiting = [
        demand("a", 0, (4, 4), pools=("loaned", "training")),
        demand("b", 1, (6, 6)),
        demand("c", 2, (1, 1), pools=("training", "loaned")),
        demand("d", 3, (2, 2)),
        demand("e", 4, (2, 2)),
    ]
    grants = Opportunistic().allocate(waiting, [], {"training": 9.0, "loaned": 3.0})
    # `a` would fit on training servers, and `c` where `a` does not: neither is tried. `e` waits for its turn.
    assert grants == [
        WorkerGrant("b", 6, "training", "training"),
        WorkerGrant("d", 2, "training", "training"),
    ]


@given(rounds())
def test_queues_start_in_order_of_arrival(round_: Round) -> None:
    grants = Opportunistic().allocate(round_.waiting, round_.running, round_.free_gpus)
    for fungible, pool in ((True, "loaned"), (False, "training")):
        queue = [job.job_id for job in round_.waiting if ("loaned" in job.pools) == fungible]
        started = [grant.job_id for grant in grants if grant.pool == pool]
        assert started == queue[: len(started)]
