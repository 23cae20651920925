"""Gandiva: jobs grow while no job waits, and shrink for those that wait."""

from hypothesis import given

from solvers.elastic.demand import WorkerGrant
from solvers.elastic.heuristics import Gandiva
from tests.support.elastic_rounds import Round, demand, granted_workers, rounds, training, used_gpus


def test_jobs_grow_on_what_idles_the_earliest_first() -> None:
    running = [demand("a", 0, (2, 6), workers=2), demand("b", 1, (2, 6), workers=2)]
    assert granted_workers(Gandiva().allocate([], running, training(5.0))) == {"a": 6, "b": 3}


def test_started_job_grows_in_same_round() -> None:
    assert granted_workers(Gandiva().allocate([demand("a", 0, (2, 6))], [], training(5.0))) == {"a": 5}


def test_no_job_grows_while_one_waits() -> None:
    running = [demand("a", 0, (2, 6), workers=2)]
    assert Gandiva().allocate([demand("b", 1, (8, 8))], running, training(7.0)) == []


def test_latest_jobs_shrink_for_waiting_one() -> None:
    running = [
        demand("a", 0, (2, 6), workers=6),
        demand("b", 1, (1, 3), workers=3, gpus_per_worker=2),
        demand("c", 2, (2, 2), workers=2),
    ]
    grants = Gandiva().allocate([demand("d", 3, (6, 6))], running, training(1.0))
    # Of the five GPUs that are missing, `b` gives four and `a` one.
    assert granted_workers(grants) == {"a": 5, "b": 1, "d": 6}


def test_useless_shrinking_is_avoided() -> None:
    running = [demand("a", 0, (2, 6), workers=6)]
    assert Gandiva().allocate([demand("b", 1, (6, 6))], running, training(1.0)) == []


def test_gpus_of_other_pool_do_not_help() -> None:
    running = [demand("a", 0, (2, 6), workers=6, pools=("loaned",))]
    assert Gandiva().allocate([demand("b", 1, (2, 2))], running, training(1.0)) == []
    grants = Gandiva().allocate(
        [demand("b", 1, (2, 2), pools=("training", "loaned"))], running, training(1.0)
    )
    assert grants == [WorkerGrant("a", 4, "loaned", "loaned"), WorkerGrant("b", 2, "loaned", "loaned")]


@given(rounds())
def test_jobs_grow_only_without_waiting_ones(round_: Round) -> None:
    grants = Gandiva().allocate(round_.waiting, round_.running, round_.free_gpus)
    granted = granted_workers(grants)
    started = [job.job_id for job in round_.waiting if job.job_id in granted]
    assert started == [job.job_id for job in round_.waiting[: len(started)]]
    if len(started) < len(round_.waiting):
        assert all(granted.get(job.job_id, 0) <= job.workers for job in round_.running)
        assert all(granted[job.job_id] == job.min_workers for job in round_.waiting[: len(started)])
        return
    taken = used_gpus(round_.jobs, grants)
    for job in round_.jobs:
        if granted.get(job.job_id, job.workers) < job.max_workers:
            # What is left in its pool does not hold another worker.
            pool = next((g.flexible_pool for g in grants if g.job_id == job.job_id), None)
            pool = pool or job.flexible_pool or job.pools[0]
            assert round_.free_gpus[pool] - taken[pool] < job.gpus_per_worker
