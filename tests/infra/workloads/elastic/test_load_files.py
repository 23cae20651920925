import gzip
from pathlib import Path
from statistics import fmean

import pytest

from infra.workloads.elastic.loads import LOAD_COLUMNS, PODS_COLUMNS, RATE_COLUMNS, read_load
from infra.workloads.elastic.requests import DAY_S, HOUR_S
from infra.workloads.timed import WorkloadError
from infra.workloads.trace import TraceError

TRACES = Path(__file__).parents[4] / "../shared/traces"
SERVEGEN = TRACES / "infer_load_servegen.csv.gz"
ALIBABA = TRACES / "infer_load_alibaba_genai2026.csv.gz"

LOAD = ",".join(LOAD_COLUMNS) + "\n"
RATES = ",".join(RATE_COLUMNS) + "\n"
PODS = ",".join(PODS_COLUMNS) + "\n"


def at(path: Path, days: float, peak: float = 0.95) -> dict[float, float]:
    return {sample.offset_s: sample.load for sample in read_load(path, days, peak)}


@pytest.fixture
def file(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "load.csv"
        path.write_text(text)
        return path

    return write


def rates(model: str, *values: float, every_s: int = 600) -> str:
    return "".join(f"{step * every_s},{model},{value},1,1.0\n" for step, value in enumerate(values))


def test_own_load_files_are_read_unchanged(file):
    loads = at(file(LOAD + "0,0.2\n600,0.4\n"), days=1)
    assert loads[0.0] == 0.2
    assert loads[300.0] == pytest.approx(0.3)
    assert loads[600.0] == pytest.approx(0.4)


def test_files_may_be_gzipped(tmp_path):
    path = tmp_path / "load.csv.gz"
    path.write_bytes(gzip.compress((LOAD + "0,0.2\n").encode()))
    assert set(at(path, days=1).values()) == {0.2}


def test_rates_are_scaled_to_peak_per_model(file):
    text = RATES + rates("large", 10, 5, 10) + rates("small", 1_000, 1_000, 500)
    loads = at(file(text), days=0.01, peak=0.8)
    assert [loads[0.0], loads[600.0]] == pytest.approx([0.8, 0.6])


def test_the_busy_part_of_the_pods_counts(file):
    text = PODS + "0,100,3.0,50,0.0,0.0\n300,50,3.0,50,0.0,0.0\n600,80,3.0,0,0.0,0.0\n"
    loads = at(file(text), days=0.01)
    assert [loads[time_s] for time_s in (0.0, 300.0, 600.0)] == pytest.approx([0.475, 0.95, 0.0])


def test_a_short_gap_in_the_rates_is_interpolated(file):
    loads = at(file(RATES + rates("m", 10, 0, 0, 4)), days=0.03, peak=1.0)
    assert [loads[step * 600.0] for step in range(4)] == pytest.approx([1.0, 0.8, 0.6, 0.4])


def test_long_gap_repeats_day_before(file):
    hourly = [hour + 1.0 for hour in range(24)]
    second = [*hourly[:5], 0, 0, 0, 0, 0, *hourly[10:]]
    loads = at(file(RATES + rates("m", *hourly, *second, every_s=3_600)), days=2, peak=1.0)
    assert [loads[DAY_S + hour * HOUR_S] for hour in range(24)] == pytest.approx([v / 24 for v in hourly])


def test_long_gap_at_start_repeats_day_after(file):
    hourly = [hour + 1.0 for hour in range(24)]
    loads = at(file(RATES + rates("m", *[0.0] * 6, *hourly[6:], *hourly, every_s=3_600)), days=1, peak=1.0)
    assert [loads[hour * HOUR_S] for hour in range(24)] == pytest.approx([v / 24 for v in hourly])


BAD = {
    "another header": ("time,load\n", "row 1: expected the header time_s,load or timestamp_s,model,"),
    "nothing": ("", "row 1: expected the header"),
    "no load": (LOAD, "has no load"),
    "no rates": (RATES, "has no load"),
    "a column too many": (LOAD + "0,0.5,1\n", "row 2: 3 columns, expected 2"),
    "a load above 1": (LOAD + "0,0.5\n300,1.01\n", "row 3: column load: '1.01' is not between 0 and 1"),
    "a load that is not a number": (LOAD + "0,nan\n", "row 2: column load: 'nan' is not between 0 and 1"),
    "a load in words": (LOAD + "0,much\n", "row 2: column load: 'much' is not a number"),
    "a time before the one above": (LOAD + "9,0\n9,0\n", "row 3: column time_s: '9' is not after the 9 of"),
    "a time of years": (LOAD + "1e9,0.5\n", "row 2: column time_s: '1e9' is not between 0 and"),
    "a negative rate": (RATES + "0,m,-1,1,1\n", "row 2: column rate_rps: '-1' is not between"),
    "a model without rates": (
        RATES + rates("m", 1) + rates("n", 0),
        "row 3: column rate_rps: '0' is not known",
    ),
    "rates out of order": (
        RATES + rates("m", 1, 1) + "300,m,1,1,1\n",
        "row 4: column timestamp_s: '300' is not after the 600 of the row above",
    ),
    "no pod": (PODS + "0,0,0,0,0,0\n", "row 2: column gpu_pods: '0' is not a whole number of at least 1"),
    "more busy than pods": (
        PODS + "0,5,0,6,0,0\n",
        "row 2: column busy_pods_ge5pct: '6' is not between 0 and 5",
    ),
    "none ever busy": (PODS + "0,5,0,0,0,0\n", "the load is never above 0"),
}


@pytest.mark.parametrize(("text", "fault"), BAD.values(), ids=BAD.keys())
def test_invalid_file_is_named_by_row_and_column(file, text, fault):
    path = file(text)
    with pytest.raises(TraceError) as caught:
        read_load(path, days=1)
    assert str(caught.value).startswith(f"{path}: ")
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("peak", [0.0, 1.1])
def test_a_peak_that_is_no_load_is_refused(file, peak):
    with pytest.raises(WorkloadError, match="peak"):
        read_load(file(LOAD + "0,0.5\n"), 1, peak)


@pytest.mark.skipif(not SERVEGEN.exists(), reason="no ServeGen load")
def test_servegen_swings_within_the_day_and_misses_nothing():
    loads = at(SERVEGEN, days=15)
    assert len(loads) == 15 * 288
    assert max(loads.values()) == pytest.approx(0.95)
    assert min(loads.values()) > 0.3
    assert 0.55 < fmean(loads.values()) < 0.7
    # Its fourteen days repeat.
    assert loads[14 * DAY_S + 6 * HOUR_S] == loads[6 * HOUR_S]


@pytest.mark.skipif(not ALIBABA.exists(), reason="no load of Alibaba's fleet")
def test_alibabas_fleet_is_idle_at_times():
    loads = at(ALIBABA, days=2)
    assert max(loads.values()) == pytest.approx(0.95)
    assert min(loads.values()) == 0.0
    assert loads[DAY_S + 8 * HOUR_S] == loads[8 * HOUR_S] > 0.8
