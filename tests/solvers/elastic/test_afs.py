"""AFS: base demands first, the shortest first, and then whoever gains the most."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.elastic.demand import JobDemand, WorkerGrant
from solvers.elastic.heuristics import Afs
from tests.support.elastic_rounds import Round, demand, granted_workers, imperfect_speedup, rounds, training


def test_shortest_job_starts_and_unfit_ones_pass() -> None:
    waiting = [
        demand("a", 0, (4, 4), remaining_work_s=4_000.0),
        demand("b", 1, (6, 6), remaining_work_s=3_000.0),
        demand("c", 2, (3, 3), remaining_work_s=4_500.0),
    ]
    assert granted_workers(Afs().allocate(waiting, [], training(10.0))) == {"a": 4, "b": 6}
    assert granted_workers(Afs().allocate(waiting, [], training(9.0))) == {"b": 6, "c": 3}


def test_worker_goes_to_largest_gain_per_gpu() -> None:
    running = [
        demand("a", 0, (1, 3), workers=1, speedup=(0.0, 1.0, 1.7, 2.2)),
        demand("b", 1, (1, 3), workers=1, speedup=(0.0, 1.0, 1.8, 2.4)),
        demand("c", 2, (1, 2), workers=1, speedup=(0.0, 1.0, 2.0), gpus_per_worker=2),
    ]
    # Gains per GPU: b 0.8, a 0.7, b 0.6, then a and c 0.5, of which a came first.
    for gpus, expected in ((1, {"b": 2}), (3, {"a": 2, "b": 3}), (4, {"a": 3, "b": 3})):
        assert granted_workers(Afs().allocate([], running, training(float(gpus)))) == expected


def test_flexible_workers_are_redistributed_each_round() -> None:
    running = [
        demand("a", 0, (1, 3), workers=3, speedup=(0.0, 1.0, 1.5, 1.75)),
        demand("b", 1, (1, 3), workers=1),
    ]
    grants = Afs().allocate([], running, training(0.0))
    assert grants == [
        WorkerGrant("a", 1, "training", "training"),
        WorkerGrant("b", 3, "training", "training"),
    ]


def test_base_demands_come_before_flexible_ones() -> None:
    running = [demand("a", 0, (1, 5), workers=5)]
    grants = Afs().allocate([demand("b", 1, (4, 8), remaining_work_s=1e9)], running, training(0.0))
    assert granted_workers(grants) == {"a": 1, "b": 4}


def test_a_worker_that_gains_nothing_is_not_given() -> None:
    running = [demand("a", 0, (1, 3), workers=1, speedup=(0.0, 1.0, 1.0, 1.0))]
    assert Afs().allocate([], running, training(8.0)) == []


def test_job_slower_in_two_pools_leaves_one() -> None:
    spanning = {"spans_pools": True, "flexible_pool": "loaned"}
    running = [demand("a", 0, (2, 3), workers=3, spanning_speed=0.5, **spanning)]
    # With all its workers it is at 1.5, with its base demand at 2.
    assert granted_workers(Afs().allocate([], running, training(0.0))) == {"a": 2}
    running = [demand("a", 0, (2, 3), workers=3, spanning_speed=0.9, **spanning)]
    assert Afs().allocate([], running, training(0.0)) == []


@st.composite
def concave_jobs(draw: st.DrawFn) -> list[JobDemand]:
    """Jobs with workers of one GPU, each of which brings less than the one before."""
    jobs = []
    for arrival in range(draw(st.integers(1, 4))):
        least, more = draw(st.integers(1, 3)), draw(st.integers(0, 4))
        gains = sorted(draw(st.lists(st.floats(0.01, 1.0), min_size=more, max_size=more)), reverse=True)
        curve = list(imperfect_speedup(least, least))
        for gain in gains:
            curve.append(curve[-1] + gain)
        jobs.append(
            demand(f"j{arrival}", arrival, (least, least + more), workers=least, speedup=tuple(curve))
        )
    return jobs


@given(concave_jobs(), st.integers(0, 8))
def test_diminishing_workers_maximise_throughput(jobs: list[JobDemand], gpus: int) -> None:
    granted = granted_workers(Afs().allocate([], jobs, training(float(gpus))))
    found = sum(job.speedup[granted.get(job.job_id, job.workers)] for job in jobs)
    best = max(
        sum(job.speedup[workers] for job, workers in zip(jobs, choice, strict=True))
        for choice in itertools.product(*(range(job.min_workers, job.max_workers + 1) for job in jobs))
        if sum(choice) - sum(job.min_workers for job in jobs) <= gpus
    )
    assert found == pytest.approx(best, rel=1e-12)


@given(rounds())
def test_fitting_jobs_start_before_any_grows(round_: Round) -> None:
    grants = Afs().allocate(round_.waiting, round_.running, round_.free_gpus)
    granted = granted_workers(grants)
    left = dict(round_.free_gpus)
    for job in round_.running:
        left[job.flexible_pool or job.pools[0]] += (job.workers - job.min_workers) * job.gpus_per_worker
    pools = {grant.job_id: grant.pool for grant in grants}
    for job in round_.waiting:
        if job.job_id in granted:
            left[pools[job.job_id]] -= job.min_workers * job.gpus_per_worker
    for job in round_.waiting:
        if job.job_id not in granted:
            assert all(left[pool] + 1e-6 < job.min_workers * job.gpus_per_worker for pool in job.pools)
