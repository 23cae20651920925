"""On days of loads, generated and real: inference is hardly ever short, and most of what is idle is lent."""

from pathlib import Path

import pytest

from infra.lender.forecast import SeasonalNaive
from infra.lender.lending import LendingParameters
from infra.workloads.elastic.loads import generate_load, read_load
from tests.infra.lender.loads import PER_DAY, lending_zone
from tests.support.lending import play

SERVEGEN = Path(__file__).parents[3] / "../shared/traces/infer_load_servegen.csv.gz"
ZONE = lending_zone(servers=100, headroom=0.02)


def test_a_daily_swing_with_bursts():
    loads = [sample.load for sample in generate_load(seed=11, days=6)]
    record = play(ZONE, loads, SeasonalNaive(), counted_from=2 * PER_DAY)
    assert record.intervals == 4 * PER_DAY
    assert record.short_fraction <= 0.005
    assert record.lent_fraction >= 0.55


def test_without_a_margin_bursts_leave_inference_short():
    loads = [sample.load for sample in generate_load(seed=11, days=6)]
    bold = LendingParameters(margin_quantile=0.0)
    record = play(ZONE, loads, SeasonalNaive(), bold, counted_from=2 * PER_DAY)
    assert record.short_fraction > 0.01


def test_gaps_in_reports_keep_inference_served():
    loads: list[float | None] = [sample.load for sample in generate_load(seed=12, days=5)]
    for start in range(PER_DAY, 5 * PER_DAY, 97):
        loads[start : start + start % 13] = [None] * (start % 13)
    record = play(ZONE, loads[: 5 * PER_DAY], SeasonalNaive(), counted_from=2 * PER_DAY)
    assert record.short_fraction <= 0.01


@pytest.mark.skipif(not SERVEGEN.exists(), reason="no ServeGen load")
def test_real_request_rates():
    loads = [sample.load for sample in read_load(SERVEGEN, days=14)]
    record = play(ZONE, loads, SeasonalNaive(), counted_from=7 * PER_DAY)
    assert record.short_fraction <= 0.005
    assert record.lent_fraction >= 0.55
