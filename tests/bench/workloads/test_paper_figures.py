"""The points of the paper's figures."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from bench.auction.scope import BASE, LOADS, SMALL, SMALL_LOADED, TRACES, figure_12, figures
from bench.workloads.paper import PaperSetting, draw

SHARED = Path(__file__).parents[3] / "../shared/traces"


def test_each_figure_varies_what_the_paper_varies():
    all_figures = figures(Path("nowhere"))
    assert list(all_figures) == [4, 5, 6, 7, 8, 9]
    labels = {number: [point.label for point in figure.points] for number, figure in all_figures.items()}
    assert labels[4] == ["50", "100", "150", "200"]
    assert labels[5] == ["2", "5", "10", "15", "20"]
    assert labels[6] == ["A100", "A40", "mixed"]
    assert labels[8] == ["light", "medium", "high"]
    assert labels[9] == ["proportional", "tight", "loose", "day"]
    for figure in (*all_figures.values(), figure_12(SMALL), figure_12(SMALL_LOADED)):
        settings = [point.setting for point in figure.points]
        assert len(set(settings)) == len(settings)


def test_absent_trace_is_skipped_with_reason(tmp_path):
    (tmp_path / TRACES["ITP"]).touch()
    figure = figures(tmp_path)[7]
    assert [point.label for point in figure.points] == ["ITP"]
    assert figure.skipped == (f"Philly: {tmp_path / TRACES['Philly']} is not here",)


def test_small_settings_suit_offline_optimum():
    for point in figure_12(SMALL).points:
        cell, workload = draw(point.setting, 0)
        assert 4 <= len(cell.zones[0].nodes) <= 10
        assert 24 <= cell.zones[0].horizon_slots <= 48
        assert 40 < len(workload.jobs) < 300


@pytest.mark.long
def test_loaded_small_settings_match_high_loads():
    light, medium, high = (mean_load(replace(BASE, arrivals_per_slot=mean)) for mean in LOADS.values())
    assert [mean_load(point.setting) for point in figure_12(SMALL_LOADED).points] == [
        pytest.approx(medium, rel=0.15),
        pytest.approx(high, rel=0.15),
    ]
    assert all(0.7 < mean_load(point.setting) < light for point in figure_12(SMALL).points)


def mean_load(setting: PaperSetting) -> float:
    """Samples asked for over samples that the nodes can do in the day."""
    loads = []
    for seed in range(3):
        cell, workload = draw(setting, seed)
        zone = cell.zones[0]
        speed = {gpu.name: gpu.samples_per_s for gpu in zone.gpu_types}
        capacity = sum(speed[node.gpu_type] for node in zone.nodes) * zone.horizon_slots * cell.slot_s
        loads.append(sum(timed.event.workload.work_samples for timed in workload.jobs) / capacity)
    return fmean(loads)


@pytest.mark.long
@pytest.mark.skipif(not SHARED.exists(), reason="the real traces are not here")
def test_real_arrivals_are_burstier_than_poisson():
    for point in figures(SHARED)[7].points:
        _, workload = draw(point.setting, 0)
        slots = [int(timed.time_s / 600) for timed in workload.jobs]
        assert len(slots) == 7_200
        assert max(slots.count(slot) for slot in set(slots)) > 100
