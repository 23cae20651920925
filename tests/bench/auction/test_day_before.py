"""Parameters of a contender are fitted to misreports of the day before the one that it is compared on."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.auction import trials
from bench.auction.trials import day_before
from bench.workloads.arrivals import JobsBefore, TraceArrivals
from bench.workloads.paper import PaperSetting, draw
from infra.workloads.trace import TraceError
from tests.bench.auction.rows import TINY

JOBS, RUN = 40, 12


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Each job has its own user, so that arrivals identify jobs."""
    path = tmp_path / "t.csv"
    rows = "".join(f"j{number},{number},{number**2},60,2,V100,,\n" for number in range(JOBS))
    path.write_text("job_id,user,submit_time_s,duration_s,gpus,gpu_type,status,model\n" + rows)
    return path


def jobs_of(setting: PaperSetting, seed: int) -> list[int]:
    return [int(timed.event.user) for timed in draw(setting, seed)[1].jobs]


@pytest.mark.parametrize("seed", range(20))
def test_real_arrivals_directly_precede_the_day(trace, seed):
    setting = replace(TINY, trace=TraceArrivals(trace, RUN))
    decided = jobs_of(setting, seed)
    before = jobs_of(*day_before(setting, seed))
    assert decided == list(range(decided[0], decided[0] + RUN))
    assert before == list(range(decided[0] - RUN, decided[0]))


def test_trace_of_two_days_gives_two_halves(trace):
    setting = replace(TINY, trace=TraceArrivals(trace, JOBS // 2))
    assert jobs_of(setting, 5) == list(range(JOBS // 2, JOBS))
    assert jobs_of(*day_before(setting, 5)) == list(range(JOBS // 2))


def test_short_trace_is_one_line_for_both_days(trace):
    setting = replace(TINY, trace=TraceArrivals(trace, JOBS // 2 + 1))
    for day in ((setting, 0), day_before(setting, 0)):
        with pytest.raises(
            TraceError, match=r"t.csv: the trace has 40 jobs, 42 are needed: a run of 21, and"
        ):
            draw(*day)


def test_large_fleet_tunes_price_on_preceding_jobs(trace, monkeypatch):
    setting = replace(TINY, nodes=40, trace=TraceArrivals(trace, RUN))
    tried = []

    def watched(setting, seed, price_micros):
        tried.append((setting, seed))
        return price_micros

    monkeypatch.setattr(trials, "_welfare_micros", watched)
    trials.tuned_price_micros(setting, 3)
    first = jobs_of(setting, 3)[0]
    assert len(tried) == len(trials.QUANTILES)
    for smaller, seed in tried:
        assert smaller.nodes == 10
        assert jobs_of(smaller, seed) == list(range(first - RUN // 4, first))


def test_rest_of_day_before_is_drawn_again(trace):
    assert day_before(TINY, 4) == (TINY, 1_000_004)
    real = replace(TINY, trace=TraceArrivals(trace, RUN))
    before, seed = day_before(real, 4)
    assert isinstance(before.trace, JobsBefore)
    assert replace(before, trace=real.trace) == real
    works = [
        [timed.event.workload.work_samples for timed in draw(*day)[1].jobs]
        for day in ((real, 4), (before, seed))
    ]
    assert works[0] != works[1]
