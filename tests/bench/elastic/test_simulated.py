"""Runs of one setting are of the same jobs, whatever scheme allocates, and are measured over all of them."""

from dataclasses import replace

import pytest

from bench.elastic.scope import table_3_5
from bench.elastic.simulated import simulate
from bench.elastic.tables import comparable
from bench.elastic.trial import Setting, Trial

TINY = Setting(seed=1, factor=0.05, first_day=4.0, days=0.25)
FIFO = Trial(TINY, scheme="fifo", loans=False)


@pytest.fixture(scope="module")
def outcomes():
    return {row: simulate(table_3_5(TINY)[row]) for row in (1, 2, 9, 13, 14)}


@pytest.mark.long
def test_all_schemes_get_the_same_requests(outcomes):
    comparable(*outcomes.values())
    jobs = {outcome["jobs"] for outcome in outcomes.values()}
    assert jobs == {len(TINY.requests())}
    for outcome in outcomes.values():
        assert len(outcome.queuing_s) == len(outcome.jct_s) == len(outcome.on_loaned) == outcome["jobs"]
        assert outcome["unfinished"] == 0


@pytest.mark.long
def test_runs_of_other_requests_are_not_compared(outcomes):
    other = simulate(replace(FIFO, setting=replace(TINY, seed=2)))
    with pytest.raises(ValueError, match="different jobs"):
        comparable(outcomes[1], other)


@pytest.mark.long
def test_the_baseline_does_not_depend_on_what_jobs_are_able_to_do(outcomes):
    again = simulate(replace(FIFO, elastic_share=1.0, scaling="lossy"))
    assert (again.queuing_s, again.jct_s) == (outcomes[1].queuing_s, outcomes[1].jct_s)


@pytest.mark.long
def test_no_job_runs_on_loaned_servers_where_none_are_lent_and_none_scales_without_elastic_jobs(outcomes):
    assert not any(outcomes[13].on_loaned)
    assert outcomes[13]["preemptions"] == 0
    assert outcomes[13]["jct_mean_s"] < outcomes[1]["jct_mean_s"]
    assert outcomes[9]["resizes"] == 0
    assert any(simulate(Trial(TINY, lends_to_all=True)).on_loaned)


@pytest.mark.long
def test_a_time_is_the_running_time_and_the_wait_where_nothing_scales(outcomes):
    requests = TINY.requests()
    for request, queuing_s, jct_s in zip(requests, outcomes[1].queuing_s, outcomes[1].jct_s, strict=True):
        assert jct_s == pytest.approx(queuing_s + request.duration_s, abs=1.0)


@pytest.mark.long
def test_wrong_predictions_change_no_running_time():
    """Only what the cell believes of the jobs: the trace says how long they run (Table 3.9)."""
    wrong = replace(FIFO, wrong_prediction_share=1.0)
    right, misled = simulate(FIFO), simulate(wrong)
    assert misled.requests == right.requests
    for one, other in zip(right.jct_s, misled.jct_s, strict=True):
        assert one == pytest.approx(other, abs=120.0)


@pytest.mark.long
def test_inference_counts_as_usage_with_loans_and_without(outcomes):
    assert outcomes[1]["overall_usage"] > 0.2
    assert 0 < outcomes[1]["training_usage"] <= 1


@pytest.mark.long
def test_a_result_is_the_same_whenever_it_is_made(outcomes):
    again = simulate(table_3_5(TINY)[2])
    times = {"cpu_s", "wall_s", "rss_mb"}
    assert again.jct_s == outcomes[2].jct_s
    for name in again.values.keys() - times:
        assert again[name] == outcomes[2][name], name
