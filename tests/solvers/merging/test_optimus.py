"""Optimus: smallest sizes, and then the steps that save the most."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from solvers.merging.rival_schemes import Optimus
from solvers.merging.scheme_interface import Contender
from tests.support.contenders import NOW_S, contender


def test_gpus_go_stepwise_to_largest_saving() -> None:
    # Steps: a saves 400, 100 and 25 s per GPU; b 300 and 50.
    jobs = [
        contender("a", 0, {1: 800.0, 2: 400.0, 3: 300.0, 4: 275.0}),
        contender("b", 1, {1: 600.0, 2: 300.0, 4: 200.0}),
    ]
    by_gpus = [Optimus().allocate(jobs, gpus, NOW_S) for gpus in (2, 3, 4, 5, 7, 9)]
    assert [(granted["a"], granted["b"]) for granted in by_gpus] == [
        (1, 1),
        (2, 1),
        (2, 2),
        (3, 2),
        (3, 4),
        (4, 4),
    ]


def test_unfit_step_leaves_room_for_others() -> None:
    jobs = [contender("a", 0, {4: 800.0, 8: 100.0}), contender("b", 1, {1: 100.0, 2: 90.0})]
    assert Optimus().allocate(jobs, 6, NOW_S) == {"a": 4, "b": 2}


def test_where_jobs_outnumber_gpus_the_earliest_are_served() -> None:
    jobs = [contender(name, arrival, {1: 10.0 - arrival, 2: 1.0}) for arrival, name in enumerate("cab")]
    assert Optimus().allocate(jobs, 2, NOW_S) == {"c": 1, "a": 1}


def test_equal_gains_go_to_the_earlier() -> None:
    jobs = [contender("b", 0, {1: 10.0, 2: 5.0}), contender("a", 1, {1: 10.0, 2: 5.0})]
    assert Optimus().allocate(jobs, 3, NOW_S) == {"b": 2, "a": 1}


@st.composite
def diminishing(draw: st.DrawFn) -> tuple[list[Contender], int]:
    """Jobs of single-GPU steps, each of which saves no more than the one before; there are GPUs for all."""
    jobs = []
    for arrival in range(draw(st.integers(1, 4))):
        savings = sorted(draw(st.lists(st.integers(1, 50), max_size=4)), reverse=True)
        left = 60 + sum(savings)
        sizes = {1: float(left)}
        for more, saved in enumerate(savings):
            left -= saved
            sizes[2 + more] = float(left)
        jobs.append(contender(f"j{arrival}", arrival, sizes))
    return jobs, len(jobs) + draw(st.integers(0, 10))


@given(diminishing())
def test_diminishing_gains_give_least_total_time(
    problem: tuple[list[Contender], int],
) -> None:
    jobs, gpus = problem
    granted = Optimus().allocate(jobs, gpus, NOW_S)
    least = min(
        sum(job.remaining_s[size] for job, size in zip(jobs, sizes, strict=True))
        for sizes in itertools.product(*(job.remaining_s for job in jobs))
        if sum(sizes) <= gpus
    )
    assert sum(job.remaining_s[granted[job.job_id]] for job in jobs) == least
