"""Pollux: the mean of speedups that it maximises, and what follows for jobs."""

import itertools
import math
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.elastic.demand import JobDemand
from solvers.elastic.pollux import (
    MOST_GENES,
    MOST_JOBS,
    WAITING_SPEEDUP,
    Pollux,
)
from streams.policies.elastic.rounds import MOST_TRIALS
from tests.support.elastic_rounds import demand, granted_workers, imperfect_speedup, training
from tests.support.examples import examples

Crowd = tuple[list[JobDemand], list[JobDemand], int]
"""Waiting jobs, running jobs, and the idle training GPUs."""


@st.composite
def crowds(draw: st.DrawFn) -> Crowd:
    """Up to five jobs that compete for one pool."""
    waiting, running = [], []
    for arrival in range(draw(st.integers(1, 5))):
        least = draw(st.integers(1, 3))
        most = least + draw(st.integers(0, 3))
        workers = draw(st.integers(least, most)) if draw(st.booleans()) else 0
        job = demand(
            f"j{arrival}",
            arrival,
            (least, most),
            gpus_per_worker=draw(st.sampled_from([1, 2])),
            remaining_work_s=draw(st.floats(10.0, 1e5)),
            speedup=imperfect_speedup(least, most),
            workers=workers,
        )
        (running if workers else waiting).append(job)
    return waiting, running, draw(st.integers(0, 12))


def mean_speedup(crowd: Crowd, workers: dict[str, int]) -> float:
    """The generalised mean that Pollux maximises with a restart of 30 s, straight from its definition."""
    waiting, running, gpus = crowd
    held = sum(job.workers * job.gpus_per_worker for job in running)
    fair_gpus = (gpus + held) / len(waiting + running)
    speedups = []
    for job in waiting + running:
        now = workers.get(job.job_id, job.workers)
        fair = min(max(math.floor(fair_gpus / job.gpus_per_worker), job.min_workers), job.max_workers)
        speedup = job.speedup[now] / job.speedup[fair]
        if job.workers and now != job.workers:
            speedup *= job.remaining_s(now) / (job.remaining_s(now) + 30.0)
        speedups.append(max(speedup, WAITING_SPEEDUP))
    return len(speedups) / sum(1 / speedup for speedup in speedups)


def best_mean(crowd: Crowd) -> float:
    """Over all allocations."""
    waiting, running, gpus = crowd
    held = sum(job.workers * job.gpus_per_worker for job in running)
    menus = [[0, *range(job.min_workers, job.max_workers + 1)] for job in waiting]
    menus += [list(range(job.min_workers, job.max_workers + 1)) for job in running]
    jobs = waiting + running
    return max(
        mean_speedup(crowd, {job.job_id: n for job, n in zip(jobs, choice, strict=True)})
        for choice in itertools.product(*menus)
        if sum(n * job.gpus_per_worker for job, n in zip(jobs, choice, strict=True)) <= gpus + held
    )


def decided(scheme: Pollux, crowd: Crowd) -> dict[str, int]:
    waiting, running, gpus = crowd
    return granted_workers(scheme.allocate(waiting, running, training(float(gpus))))


@given(crowd=crowds(), seed=st.integers(0, 1_000))
@settings(deadline=None)
def test_a_round_is_never_worse_than_no_change(crowd: Crowd, seed: int) -> None:
    workers = decided(Pollux(seed, generations=2, population=4), crowd)
    assert mean_speedup(crowd, workers) >= mean_speedup(crowd, {}) * (1 - 1e-12)


@given(crowd=crowds())
@settings(deadline=None, max_examples=examples(30))
def test_most_seeds_find_best_small_allocation(crowd: Crowd) -> None:
    best = best_mean(crowd)
    found = [mean_speedup(crowd, decided(Pollux(seed), crowd)) for seed in range(20)]
    assert max(found) <= best * (1 + 1e-12)
    assert sum(mean >= best * (1 - 1e-12) for mean in found) >= 19


def test_nearly_completed_job_is_not_restarted() -> None:
    running = [demand("a", 0, (2, 4), workers=2, remaining_work_s=40.0)]
    assert decided(Pollux(1), ([], running, 2)) == {}
    running = [running[0]._replace(remaining_work_s=4_000.0)]
    assert decided(Pollux(1), ([], running, 2)) == {"a": 4}
    running = [running[0]._replace(remaining_work_s=40.0)]
    assert decided(Pollux(1, restart_s=0.0), ([], running, 2)) == {"a": 4}


def test_flexible_workers_go_where_they_speed_up_more() -> None:
    running = [
        demand("a", 0, (2, 4), workers=4, speedup=(0.0, 1.0, 2.0, 2.1, 2.2), remaining_work_s=1e6),
        demand("b", 1, (2, 4), workers=2, remaining_work_s=1e6),
    ]
    assert decided(Pollux(1), ([], running, 0)) == {"a": 2, "b": 4}


def test_harmonic_mean_prefers_starting_jobs() -> None:
    running = [demand("a", 0, (2, 8), workers=8, remaining_work_s=1e6)]
    waiting = [demand("b", 1, (6, 6))]
    assert decided(Pollux(1), (waiting, running, 0)) == {"a": 2, "b": 6}


def test_draws_differ_by_seed_and_remaining_work() -> None:
    def round_of(remaining_work_s: float) -> Crowd:
        jobs = [
            demand(f"j{n}", n, (2, 9), gpus_per_worker=1 + n % 3, remaining_work_s=remaining_work_s * (n + 1))
            for n in range(30)
        ]
        return jobs, [], 60

    def outcomes(make: Callable[[int], tuple[Pollux, Crowd]]) -> int:
        return len({tuple(sorted(decided(*make(number)).items())) for number in range(5)})

    assert outcomes(lambda n: (Pollux(n, generations=2, population=4), round_of(1e5))) == 5
    assert outcomes(lambda n: (Pollux(0, generations=2, population=4), round_of(1e5 + n))) == 5


def test_searches_of_round_share_gene_budget() -> None:
    scheme = Pollux(0)
    for jobs in range(1, MOST_JOBS + 1):
        generations = [scheme.generations_of(jobs, trial) for trial in range(MOST_TRIALS)]
        assert generations[-1] >= 1
        assert sum(scheme.population * jobs * (each + 1) for each in generations) <= MOST_GENES
    assert scheme.generations_of(318, trial=0) == 250


def test_search_takes_first_of_waiting_jobs() -> None:
    waiting = [demand(f"j{arrival}", arrival, (1, 8), remaining_work_s=1e4) for arrival in range(3_000)]
    started = decided(Pollux(0), (waiting, [], 150))
    assert 100 <= sum(started.values()) <= 150
    assert started.keys() <= {job.job_id for job in waiting[:MOST_JOBS]}


def test_unstartable_jobs_take_no_search_place() -> None:
    wide = [demand(f"wide{arrival}", arrival, (9, 9)) for arrival in range(1_000)]
    assert decided(Pollux(0), ([*wide, demand("last", 1_000, (1, 1))], [], 8)) == {"last": 1}
