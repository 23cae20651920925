import math
from itertools import pairwise
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.workloads.elastic.loads import (
    INTERVAL_S,
    PEAK,
    TROUGH,
    LoadSample,
    generate_load,
    load_reports,
    resampled,
)
from infra.workloads.elastic.requests import DAY_S, HOUR_S
from infra.workloads.timed import WorkloadError
from schemas.base import MAX_TIME_S

SEEDS = (0, 1, 7)


@pytest.fixture(scope="module", params=SEEDS)
def fortnight(request) -> list[LoadSample]:
    return generate_load(request.param, days=15)


def hours_of(day: list[LoadSample]) -> dict[int, float]:
    return {
        hour: fmean(sample.load for sample in day if sample.offset_s // HOUR_S % 24 == hour)
        for hour in range(24)
    }


def test_the_same_seed_draws_the_same_load():
    assert generate_load(3, days=1) == generate_load(3, days=1)
    assert generate_load(3, days=1) != generate_load(4, days=1)
    assert generate_load(3, days=2)[:288] == generate_load(3, days=1)


def test_a_load_is_reported_every_five_minutes(fortnight):
    assert [sample.offset_s for sample in fortnight] == [300.0 * step for step in range(15 * 288)]


def test_load_ranges_from_42_to_95_percent(fortnight):
    loads = [sample.load for sample in fortnight]
    assert (min(loads), max(loads)) == (TROUGH, PEAK) == (0.42, 0.95)
    assert fmean(loads) == pytest.approx(0.65, abs=0.01)


def test_trough_precedes_dawn_and_peak_is_at_night(fortnight):
    hours = hours_of(fortnight)
    assert min(hours, key=hours.__getitem__) in (5, 6)
    assert [hour for hour, load in hours.items() if load > 0.87] == [20, 21, 22, 23]


def test_half_of_changes_exceed_2_percent(fortnight):
    changes = [abs(later.load - sooner.load) for sooner, later in pairwise(fortnight)]
    assert median(changes) == pytest.approx(0.02, abs=0.001)


def test_trough_and_peak_may_be_others():
    loads = [sample.load for sample in generate_load(0, days=5, trough=0.0, peak=0.5)]
    assert (min(loads), max(loads)) == (0.0, 0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"days": 0.0},
        {"days": math.inf},
        {"days": 1.0, "trough": 0.9, "peak": 0.9},
        {"days": 1.0, "peak": 1.1},
    ],
)
def test_load_of_empty_time_or_range_is_refused(wrong):
    with pytest.raises(WorkloadError, match="expected more than 0 days"):
        generate_load(0, **wrong)


def test_samples_are_interpolated_and_repeat_daily():
    samples = [LoadSample(0.0, 0.2), LoadSample(DAY_S / 2, 0.8)]
    loads = {sample.offset_s: sample.load for sample in resampled(samples, days=2)}
    assert len(loads) == 2 * 288
    assert loads[DAY_S / 4] == pytest.approx(0.5)
    assert loads[3 * DAY_S / 4] == pytest.approx(0.5)
    assert loads[DAY_S] == pytest.approx(0.2)
    assert loads[DAY_S + DAY_S / 2] == pytest.approx(0.8)


def test_late_samples_keep_their_hours():
    samples = [LoadSample(hour * HOUR_S, hour / 100) for hour in range(6, 30)]
    loads = {sample.offset_s: sample.load for sample in resampled(samples, days=1)}
    assert loads[6 * HOUR_S] == pytest.approx(0.06)
    assert loads[0.0] == pytest.approx(0.24)
    assert loads[5 * HOUR_S] == pytest.approx(0.29)


def test_file_of_36_hours_repeats_its_first_day():
    samples = [LoadSample(hour * HOUR_S, hour / 100) for hour in range(36)]
    loads = {sample.offset_s: sample.load for sample in resampled(samples, days=2)}
    assert loads[35 * HOUR_S] == pytest.approx(0.35)
    assert loads[40 * HOUR_S] == pytest.approx(0.16)


@pytest.mark.parametrize("samples", [[], [LoadSample(5.0, 0.1), LoadSample(5.0, 0.2)]])
def test_missing_or_unordered_samples_are_refused(samples):
    with pytest.raises(WorkloadError, match="each later than the one before"):
        resampled(samples, days=1)


@given(
    st.dictionaries(st.integers(0, 3 * 86_400), st.floats(0, 1), min_size=1, max_size=30),
    st.floats(0.01, 5),
)
def test_load_stays_within_its_samples(loads, days):
    samples = [LoadSample(float(time_s), load) for time_s, load in sorted(loads.items())]
    found = resampled(samples, days)
    assert [sample.offset_s for sample in found] == [INTERVAL_S * step for step in range(len(found))]
    least, most = min(loads.values()), max(loads.values())
    assert all(least - 1e-12 <= sample.load <= most + 1e-12 and 0 <= sample.load <= 1 for sample in found)


def test_reports_are_sent_when_the_load_was_measured():
    (timed,) = load_reports([LoadSample(300.0, 0.5)], "c", "z", start_s=1_000.0)
    assert timed.time_s == timed.event.time_s == 1_300.0
    assert (timed.event.cell, timed.event.zone, timed.event.load) == ("c", "z", 0.5)


def test_reports_beyond_the_year_2100_are_refused():
    with pytest.raises(WorkloadError, match="beyond the year 2100"):
        load_reports([LoadSample(300.0, 0.5)], "c", "z", start_s=MAX_TIME_S)
