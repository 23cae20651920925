"""Properties of every scheme that merging is compared with."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.merging.rivals import RIVALS
from solvers.merging.scheme_interface import Contender, RivalScheme, fixed_size
from tests.support.contenders import NOW_S, crowds
from tests.support.examples import examples

Crowd = tuple[list[Contender], int]

NAMES = ("srtf", "tiresias", "optimus", "pollux", "themis", "titan")


def scheme(name: str) -> RivalScheme:
    rival = RIVALS[name]
    return rival.make(rival.interval_s)


every = pytest.mark.parametrize("name", NAMES)


def test_the_intervals_are_those_of_the_paper() -> None:
    assert {name: rival.interval_s for name, rival in RIVALS.items()} == {
        "srtf": 120.0,
        "tiresias": 120.0,
        "optimus": 300.0,
        "pollux": 300.0,
        "themis": 120.0,
        "titan": 120.0,
    }


@every
def test_empty_zone_gets_no_allocation(name: str) -> None:
    assert scheme(name).allocate([], 8, NOW_S) == {}


@every
@given(crowd=crowds())
@settings(deadline=None, max_examples=examples(200))
def test_allocation_fits_with_permitted_sizes(name: str, crowd: Crowd) -> None:
    jobs, gpus = crowd
    granted = scheme(name).allocate(jobs, gpus, NOW_S)
    assert sum(granted.values()) <= gpus
    sizes = {job.job_id: set(job.remaining_s) for job in jobs}
    assert all(size in sizes[job_id] for job_id, size in granted.items() if size > 0)


@every
@given(crowd=crowds(), shrink=st.integers(1, 8))
@settings(deadline=None, max_examples=examples(100))
def test_allocation_fits_after_node_loss(name: str, crowd: Crowd, shrink: int) -> None:
    jobs, gpus = crowd
    left = max(gpus - shrink, 0)
    assert sum(scheme(name).allocate(jobs, left, NOW_S).values()) <= left


@every
@given(crowd=crowds())
@settings(deadline=None, max_examples=examples(100))
def test_answer_is_independent_of_ids(name: str, crowd: Crowd) -> None:
    jobs, gpus = crowd
    granted = scheme(name).allocate(jobs, gpus, NOW_S)
    assert scheme(name).allocate(jobs, gpus, NOW_S) == granted
    names = {job.job_id: f"{len(jobs) - job.arrival:04}" for job in jobs}
    renamed = [job._replace(job_id=names[job.job_id]) for job in jobs]
    assert scheme(name).allocate(renamed, gpus, NOW_S) == {
        names[job_id]: size for job_id, size in granted.items()
    }


@pytest.mark.parametrize("name", ["srtf", "tiresias"])
@given(crowd=crowds())
def test_fitting_fixed_size_is_given(name: str, crowd: Crowd) -> None:
    jobs, gpus = crowd
    granted = scheme(name).allocate(jobs, gpus, NOW_S)
    left = gpus - sum(granted.values())
    assert all(fixed_size(job, gpus) > left for job in jobs if job.job_id not in granted)
    assert all(size == fixed_size(job, gpus) for job in jobs if (size := granted.get(job.job_id)))


@given(crowd=crowds())
def test_optimus_leaves_no_step_that_fits(crowd: Crowd) -> None:
    jobs, gpus = crowd
    granted = scheme("optimus").allocate(jobs, gpus, NOW_S)
    left = gpus - sum(granted.values())
    for job in jobs:
        size = granted.get(job.job_id, 0)
        assert all(larger - size > left for larger in [each for each in job.remaining_s if each > size][:1])
