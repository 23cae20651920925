"""The points of the paper's figures."""

from pathlib import Path

import pytest

from bench.workloads.figures import TRACES, figures
from bench.workloads.paper import draw

SHARED = Path(__file__).parents[3] / "../shared/traces"


def test_each_figure_varies_what_the_paper_varies():
    all_figures = figures(Path("nowhere"))
    assert list(all_figures) == [4, 5, 6, 7, 8, 9, 12]
    labels = {number: [point.label for point in figure.points] for number, figure in all_figures.items()}
    assert labels[4] == ["50", "100", "150", "200"]
    assert labels[5] == ["2", "5", "10", "15", "20"]
    assert labels[6] == ["A100", "A40", "mixed"]
    assert labels[8] == ["light", "medium", "high"]
    assert labels[9] == ["proportional", "tight", "loose", "day"]
    for figure in all_figures.values():
        settings = [point.setting for point in figure.points]
        assert len(set(settings)) == len(settings)


def test_a_trace_that_is_absent_is_skipped_with_the_reason(tmp_path):
    (tmp_path / TRACES["ITP"]).touch()
    figure = figures(tmp_path)[7]
    assert [point.label for point in figure.points] == ["ITP"]
    assert figure.skipped == (f"Philly: {tmp_path / TRACES['Philly']} is not here",)


def test_the_small_settings_are_small_enough_for_an_offline_optimum():
    for point in figures(Path("nowhere"))[12].points:
        cell, workload = draw(point.setting, 0)
        assert 4 <= len(cell.zones[0].nodes) <= 10
        assert 24 <= cell.zones[0].horizon_slots <= 48
        assert 40 < len(workload.bids) < 300


@pytest.mark.skipif(not SHARED.exists(), reason="the real traces are not here")
def test_real_arrivals_are_burstier_than_poisson():
    for point in figures(SHARED)[7].points:
        _, workload = draw(point.setting, 0)
        slots = [int(timed.time_s / 600) for timed in workload.bids]
        assert len(slots) == 7_200
        assert max(slots.count(slot) for slot in set(slots)) > 100
