"""Finish-time fairness: who contended, and what a fair share would have made of a job."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.merging.fairness import Finished, contending, finish_time_fairness

SCALING = {1: 400.0, 2: 200.0, 4: 100.0}


def finished(job_id: str, submitted_s: float, finished_s: float, asked_gpus: int = 4) -> Finished:
    return Finished(job_id, submitted_s, finished_s, asked_gpus, SCALING)


def test_job_alone_compares_with_requested_size() -> None:
    assert finish_time_fairness([finished("a", 50.0, 150.0)], 8) == {"a": 1.0}
    assert finish_time_fairness([finished("a", 50.0, 150.0, asked_gpus=2)], 8) == {"a": 0.5}


def test_temporary_rivals_count_for_their_time() -> None:
    jobs = [finished("a", 0.0, 200.0), finished("b", 100.0, 400.0), finished("c", 150.0, 200.0)]
    # a: 100 s alone, 50 s with one other, 50 s with two.
    assert contending(jobs) == pytest.approx({"a": 350 / 200, "b": 450 / 300, "c": 3.0})


def test_the_fair_share_shrinks_with_those_who_contend() -> None:
    jobs = [finished("a", 0.0, 300.0), finished("b", 0.0, 300.0)]
    assert finish_time_fairness(jobs, 4) == {"a": 1.5, "b": 1.5}
    # A share of half a GPU is one GPU for half of the time.
    assert finish_time_fairness(jobs, 1) == {"a": 300 / 800, "b": 300 / 800}


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=8))
def test_contention_is_what_counting_second_by_second_gives(spans: list[tuple[int, int]]) -> None:
    jobs = [
        finished(str(index), float(start), float(start + length))
        for index, (start, length) in enumerate(spans)
    ]
    counted = {
        job.job_id: sum(
            sum(other.submitted_s <= second < other.finished_s for other in jobs)
            for second in range(int(job.submitted_s), int(job.finished_s))
        )
        / (job.finished_s - job.submitted_s)
        for job in jobs
    }
    assert contending(jobs) == pytest.approx(counted)
