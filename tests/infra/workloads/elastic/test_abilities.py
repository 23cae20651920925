import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.workloads.elastic.calibrated import generate_requests
from infra.workloads.elastic.jobs import (
    Abilities,
    Ability,
    ScalingRange,
    draw_abilities,
    linear,
    lossy,
)
from infra.workloads.elastic.requests import DAY_S, JobRequest, chosen_by_share
from infra.workloads.timed import WorkloadError


@pytest.fixture(scope="module")
def requests() -> list[JobRequest]:
    return generate_requests(0, days=3)


def share(requests: list[JobRequest], chosen: list[bool]) -> tuple[float, float]:
    """Return the chosen jobs' share of all jobs, and of all GPU time."""
    load = math.fsum(request.gpu_s for request, is_chosen in zip(requests, chosen, strict=True) if is_chosen)
    return sum(chosen) / len(requests), load / math.fsum(request.gpu_s for request in requests)


def indices(drawn: list[Ability], name: str) -> set[int]:
    return {index for index, ability in enumerate(drawn) if getattr(ability, name)}


def test_basic_has_21_percent_fungible_jobs(requests):
    drawn = draw_abilities(requests, Abilities(), seed=0)
    assert [ability.elastic for ability in drawn] == [request.scalable for request in requests]
    assert all(ability.fungible for ability in drawn if ability.elastic)
    jobs, load = share(requests, [ability.fungible and not ability.elastic for ability in drawn])
    assert jobs == pytest.approx(0.21, abs=0.002)
    # The largest job has 3 % of these three days.
    assert load == pytest.approx(0.21, abs=0.015)
    assert not indices(drawn, "heterogeneous") | indices(drawn, "keeps_checkpoints")


def test_fungible_load_in_both_readings(requests):
    """21 % of it besides the elastic jobs, which have 36 %; or 21 % in all, some of it elastic."""
    both = [draw_abilities(requests, Abilities(elastic_are_fungible=flag), seed=0) for flag in (True, False)]
    (jobs, load), (jobs_in_all, load_in_all) = (
        share(requests, [ability.fungible for ability in drawn]) for drawn in both
    )
    assert (jobs, load) == pytest.approx((0.26, 0.57), abs=0.02)
    assert (jobs_in_all, load_in_all) == pytest.approx((0.21, 0.21), abs=0.015)
    elastic = indices(both[1], "elastic")
    assert elastic == indices(both[0], "elastic")
    assert 0 < len(elastic & indices(both[1], "fungible")) < len(elastic)


def test_advanced_adds_a_tenth_of_heterogeneous_jobs(requests):
    basic, advanced = (draw_abilities(requests, Abilities(scenario), 0) for scenario in ("basic", "advanced"))
    assert indices(advanced, "fungible") == indices(basic, "fungible")
    days = Counter(int(request.offset_s // DAY_S) for request in requests)
    chosen = Counter(int(requests[index].offset_s // DAY_S) for index in indices(advanced, "heterogeneous"))
    assert chosen == {day: round(0.1 * jobs) for day, jobs in days.items()}


def test_heterogeneous_has_no_fungible_jobs(requests):
    advanced, alone = (
        draw_abilities(requests, Abilities(scenario), 0) for scenario in ("advanced", "heterogeneous")
    )
    assert indices(alone, "heterogeneous") == indices(advanced, "heterogeneous")
    assert not indices(alone, "fungible")
    assert indices(alone, "elastic") == indices(advanced, "elastic")


def test_in_ideal_all_jobs_can_do_all(requests):
    drawn = draw_abilities(requests, Abilities("ideal", elastic_are_fungible=False), 0)
    assert all(ability.elastic and ability.fungible and ability.heterogeneous for ability in drawn)


@pytest.mark.parametrize(
    ("share_of", "ability"), [("elastic_share", "elastic"), ("checkpoint_share", "keeps_checkpoints")]
)
def test_a_larger_share_contains_the_smaller_one(requests, share_of, ability):
    smaller: set[int] = set()
    for part in (0.0, 0.02, 0.2, 0.6, 1.0):
        drawn = indices(draw_abilities(requests, Abilities(**{share_of: part}), 0), ability)
        assert len(drawn) == round(part * len(requests))
        assert smaller <= drawn
        smaller = drawn


def test_more_elastic_jobs_change_no_other_draw(requests):
    basic, more = (
        draw_abilities(requests, Abilities(elastic_share=part, checkpoint_share=0.4), 0)
        for part in (None, 0.2)
    )
    assert indices(basic, "elastic") <= indices(more, "elastic")
    assert indices(more, "fungible") == indices(basic, "fungible") | indices(more, "elastic")
    assert indices(basic, "keeps_checkpoints") == indices(more, "keeps_checkpoints")


def test_scaling_is_linear_or_loses_a_fifth():
    assert linear(ScalingRange(2, 4, 1, 0.5)) == ()
    assert lossy(ScalingRange(2, 4, 1, 0.5)) == pytest.approx((1.0, 2.0, 2.8, 3.6))
    assert lossy(ScalingRange(3, 3, 1, 0.5)) == (1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    "wrong", [{"elastic_share": 1.1}, {"checkpoint_share": -0.1}, {"heterogeneous_share": 2.0}]
)
def test_invalid_share_is_refused_by_name(wrong):
    (name,) = wrong
    with pytest.raises(WorkloadError, match=f"{name} is "):
        Abilities(**wrong)


sizes = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=60)


@given(sizes, st.floats(0, 1), st.floats(0, 1), st.integers(0, 5))
def test_shares_draw_nearly_the_requested_load(durations, job_share, load_share, seed):
    requests = [
        JobRequest(float(i), "u", 1, duration, scalable=False) for i, duration in enumerate(durations)
    ]
    chosen = chosen_by_share(requests, range(len(requests)), job_share, load_share, random.Random(seed))
    assert chosen == sorted(set(chosen))
    load = math.fsum(requests[index].gpu_s for index in chosen)
    # Each of the two systematic samples is off by its largest job at most.
    assert load == pytest.approx(load_share * math.fsum(durations), abs=2 * max(durations) + 1e-6)
