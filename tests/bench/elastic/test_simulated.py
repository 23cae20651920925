"""Runs of one setting have the same jobs under every scheme, and their figures count all jobs."""

from dataclasses import replace

import pytest

from bench.elastic.simulated import ElasticSetting, ElasticTrial, simulate
from bench.elastic.table_3_5 import check_comparable, trials_by_row

TINY = ElasticSetting(seed=1, factor=0.05, first_day=4.0, days=0.25)
FIFO = ElasticTrial(TINY, scheme="fifo", loans=False)


@pytest.fixture(scope="module")
def outcomes():
    return {row: simulate(trials_by_row(TINY)[row]) for row in (1, 2, 9, 13, 14)}


@pytest.mark.long
def test_all_schemes_get_the_same_requests(outcomes):
    check_comparable(*outcomes.values())
    jobs = {outcome["jobs"] for outcome in outcomes.values()}
    assert jobs == {len(TINY.requests())}
    for outcome in outcomes.values():
        assert len(outcome.queuing_s) == len(outcome.jct_s) == outcome["jobs"]
        assert outcome["unfinished"] == 0


@pytest.mark.long
def test_runs_of_other_requests_are_not_compared(outcomes):
    other = simulate(replace(FIFO, setting=replace(TINY, seed=2)))
    with pytest.raises(ValueError, match="different jobs"):
        check_comparable(outcomes[1], other)


@pytest.mark.long
def test_baseline_is_independent_of_abilities(outcomes):
    again = simulate(replace(FIFO, elastic_share=1.0, scaling="tuned"))
    assert (again.queuing_s, again.jct_s) == (outcomes[1].queuing_s, outcomes[1].jct_s)


@pytest.mark.long
def test_preemptions_need_loans_and_resizes_elasticity(outcomes):
    assert outcomes[13]["preemptions"] == 0
    assert outcomes[13]["jct_mean_s"] < outcomes[1]["jct_mean_s"]
    assert outcomes[9]["resizes"] == 0


@pytest.mark.long
def test_unscaled_time_is_duration_plus_wait(outcomes):
    requests = TINY.requests()
    for request, queuing_s, jct_s in zip(requests, outcomes[1].queuing_s, outcomes[1].jct_s, strict=True):
        assert jct_s == pytest.approx(queuing_s + request.duration_s, abs=1.0)


@pytest.mark.long
def test_inference_counts_as_usage_with_loans_and_without(outcomes):
    assert outcomes[1]["overall_usage"] > 0.2
    assert 0 < outcomes[1]["training_usage"] <= 1


@pytest.mark.long
def test_result_is_reproducible(outcomes):
    again = simulate(trials_by_row(TINY)[2])
    times = {"cpu_s", "wall_s", "rss_mb"}
    assert again.jct_s == outcomes[2].jct_s
    for name in again.values.keys() - times:
        assert again[name] == outcomes[2][name], name
