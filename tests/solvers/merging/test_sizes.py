"""Sizes: what a job gets of a number of GPUs that it may not be able to have."""

import pytest

from solvers.merging.scheme_interface import fixed_size, grow_in_rounds, size_within
from tests.support.contenders import contender


@pytest.mark.parametrize(("most", "size"), [(0.5, 1), (1, 1), (3.9, 2), (4, 4), (100, 4)])
def test_size_is_largest_within_or_smallest(most: float, size: int) -> None:
    assert size_within((1, 2, 4), most) == size


def test_oversized_request_gets_all() -> None:
    job = contender("a", 0, {2: 100.0, 4: 60.0, 8: 40.0}, asked_gpus=8)
    assert [fixed_size(job, gpus) for gpus in (16, 7, 3, 1)] == [8, 4, 2, 2]


def test_rest_is_given_in_single_steps() -> None:
    first = contender("first", 0, {1: 9.0, 2: 5.0, 4: 3.0})
    second = contender("second", 1, {2: 9.0, 4: 5.0})
    sizes: dict[str, int] = {}
    assert grow_in_rounds(sizes, [(first, 4), (second, 4)], 7) == 1
    assert sizes == {"first": 2, "second": 4}


def test_job_at_its_limit_is_skipped() -> None:
    first = contender("first", 0, {1: 9.0, 2: 5.0})
    second = contender("second", 1, {1: 9.0, 2: 5.0})
    sizes = {"first": 1}
    assert grow_in_rounds(sizes, [(first, 1), (second, 2)], 7) == 5
    assert sizes == {"first": 1, "second": 2}
