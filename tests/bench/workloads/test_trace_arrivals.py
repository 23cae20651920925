"""Real arrivals on slots: as bursty as they were, and nothing drawn from a bad file."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from bench.workloads.arrivals import TraceArrivals
from bench.workloads.paper import PaperSetting, draw
from infra.workloads.trace import TraceError

HEADER = "job_id,user,submit_time_s,duration_s,gpus,gpu_type,status,model\n"
SMALL = PaperSetting(nodes=6, slots=36, work_scale=0.5)


def row(number: int, time_s: float, rest: str = "60,2,V100") -> str:
    return f"j{number},u{number % 3},{time_s},{rest},,\n"


def test_one_factor_maps_gaps_to_slots(tmp_path):
    times = (0, 1, 2, 3, 4, 5, 100, 101, 150, 199.9, 350, 500)
    path = tmp_path / "t.csv"
    path.write_text(HEADER + "".join(row(number, time) for number, time in enumerate(times)))
    arrivals = TraceArrivals(path, 6).draw(slots=8, slot_s=600.0, seed=0)
    # 400 s of trace are 8 slots: 50 s each. The last job falls on the end and is taken into the last slot.
    assert [arrival.slot for arrival in arrivals] == [0, 0, 1, 1, 5, 7]
    assert [arrival.user for arrival in arrivals] == ["u0", "u1", "u2", "u0", "u1", "u2"]


def test_work_is_drawn_as_without_a_trace(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(HEADER + "".join(row(number, number**2) for number in range(200)))
    traced = draw(replace(SMALL, trace=TraceArrivals(path, 100)), 4)[1].jobs
    drawn = draw(SMALL, 4)[1].jobs
    assert len(traced) == 100
    for one, other in zip(traced, drawn, strict=False):
        assert one.event.workload.work_samples == other.event.workload.work_samples
    assert all(early.time_s <= late.time_s for early, late in pairwise(traced))
    assert traced == draw(replace(SMALL, trace=TraceArrivals(path, 100)), 4)[1].jobs


def test_bursts_stay_bursts(tmp_path):
    path = tmp_path / "t.csv"
    times = [1_000 * (number // 50) + number % 50 for number in range(1_000)]
    path.write_text(HEADER + "".join(row(number, time) for number, time in enumerate(times)))
    counts = Counter(arrival.slot for arrival in TraceArrivals(path, 500).draw(36, 600.0, seed=0))
    # Ten bursts of 50 jobs in a quarter of a slot each: none spreads over more than two.
    assert 10 <= len(counts) <= 20
    assert max(counts.values()) > 25


BAD = {
    "no such file": (None, "No such file"),
    "a column is missing": ("job_id,user,submit_time_s,gpus\n", "row 1: column duration_s is missing"),
    "times out of order": (
        HEADER + row(1, 50) + row(2, 70) + row(3, 60),
        "row 4: column submit_time_s: 60.0 is before the 70.0 of the job above",
    ),
    "a GPU type that nobody knows": (
        HEADER + row(1, 50) + row(2, 70, "60,2,abacus"),
        "row 3: column gpu_type: 'abacus' is not blank or one of A10, ",
    ),
    "an endless job": (HEADER + row(1, 50, "inf,2,"), "row 2: column duration_s: 'inf' is not between 0 and"),
    "a job before the start": (HEADER + row(1, -5), "row 2: column submit_time_s: '-5' is not between 0 and"),
    "no GPU": (HEADER + row(1, 5, "60,0,"), "row 2: column gpus: '0' is not above 0"),
    "too few jobs": (
        HEADER + row(1, 5) + row(2, 6),
        "the trace has 2 jobs, 6 are needed: a run of 3, and the day",
    ),
    "no room for the day before": (
        HEADER + "".join(row(number, number) for number in range(5)),
        "the trace has 5 jobs, 6 are needed: a run of 3, and the day before it",
    ),
    "no time passes": (
        HEADER + "".join(row(number, 5) for number in range(6)),
        "all jobs of the trace after the first 3 are submitted at",
    ),
}


@pytest.mark.parametrize(("text", "fault"), BAD.values(), ids=BAD.keys())
def test_invalid_trace_names_row_and_column(tmp_path, text, fault):
    path = tmp_path / "t.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(TraceError) as error:
        draw(replace(SMALL, trace=TraceArrivals(path, 3)), 0)
    assert str(error.value).startswith(f"{path}: ")
    assert fault in str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(tmp_path.iterdir()) == ([path] if text is not None else [])
