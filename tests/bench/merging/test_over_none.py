"""Merging against no merging: the figures, and settings in which an earlier form lost."""

from dataclasses import replace

import pytest

from bench.goals import goals
from bench.merging.merging_trial import HALVES, MergingSetting, MergingTrial, in_half
from bench.merging.parts import full, over_none, quick
from bench.merging.simulated import MergingRunOutcome, SimulatedJob, run
from tests.support.profiles import SHARED, settings_of

measured = pytest.mark.skipif(not SHARED.exists(), reason="the measured profiles are not here")
SETTINGS = settings_of(seed=0)


def outcome(*completion_s: float) -> MergingRunOutcome:
    jobs = tuple(SimulatedJob(f"j{n}", 0.0, ended_s, True) for n, ended_s in enumerate(completion_s))
    return MergingRunOutcome(jobs, len(jobs), 1, 0, (), 0.0)


def test_figures_are_of_the_worst_settings() -> None:
    one, other = (MergingSetting("p", "m", "FM-1-m.csv", drawn=2, seed=seed) for seed in (1, 2))
    result = over_none(
        {
            one: {
                MergingTrial(one): outcome(50.0, 100.0),
                MergingTrial(one, modes=()): outcome(100.0, 100.0),
                MergingTrial(one, knowledge="half"): outcome(40.0, 90.0),
            },
            other: {
                MergingTrial(other): outcome(10.0, 120.0),
                MergingTrial(other, modes=()): outcome(20.0, 100.0),
                MergingTrial(other, knowledge="half"): outcome(15.0, 75.0),
            },
        }
    )
    figures = {one.name: one.value for one in result.measurements}
    assert figures == pytest.approx(
        {
            "merging_over_none_min_pct": 100.0 * (1 - 65 / 60),
            "merging_over_none_mean_pct": (25.0 + 100.0 * (1 - 65 / 60)) / 2,
            "merging_tail_over_none_max_pct": 20.0,
            "merging_known_over_none_min_pct": 25.0,
            "merging_known_over_none_mean_pct": 30.0,
            "merging_known_tail_over_none_max_pct": -10.0,
        }
    )
    (table,) = result.tables
    assert [row["known"] for row in table.rows] == ["nothing", "nothing", "half", "half"]
    assert figures.keys() <= goals("merging").keys()


@measured
def test_halves_of_tasks_are_disjoint() -> None:
    for setting in SETTINGS:
        _, jobs = setting.read()
        chosen, held = ({job.task for job in in_half(jobs, half)} for half in HALVES)
        assert chosen | held == {job.task for job in jobs}
        assert not chosen & held
        assert {job.task for job in replace(setting, half="held", drawn=9).read()[1]} <= held


def test_full_form_covers_halves_sizes_and_loads() -> None:
    compared = full(SETTINGS).compared
    assert {(one.model, one.half) for one in compared} == {
        (setting.model, half) for setting in SETTINGS for half in HALVES
    }
    assert {one.drawn for one in compared} == {30, 60, 240}
    assert {one.load for one in compared} == {1.0, 2.0}
    assert len({one.seed for one in compared}) > 1
    assert quick(SETTINGS).compared


@pytest.mark.slow
@measured
@pytest.mark.parametrize(
    ("model", "jobs", "seed"),
    [
        ("roberta-base", 30, 1),
        *[pytest.param("vit", *case, marks=pytest.mark.long) for case in ((30, 1), (60, 2))],
    ],
)
def test_merging_does_not_lose_to_not_merging(model: str, jobs: int, seed: int) -> None:
    """With vit, an earlier form made the mean job 8 and 37 % slower here, and the slowest 64 and 81 %.
    Nothing is known of any merge, so that none is made."""
    (setting,) = settings_of(model, seed=seed)
    setting = replace(setting, drawn=jobs)
    ours, without = run(MergingTrial(setting)), run(MergingTrial(setting, modes=()))
    assert ours.average_s <= without.average_s
    assert ours.slowest_s <= without.slowest_s


@pytest.mark.long
@measured
def test_merging_pays_where_past_merges_show_it() -> None:
    """Half of roberta-base's tasks, for a zone that has the results of half of their pairs."""
    (setting,) = settings_of("roberta-base", seed=0)
    setting = replace(setting, half="chosen", drawn=60)
    known, without = run(MergingTrial(setting, knowledge="half")), run(MergingTrial(setting, modes=()))
    assert known.average_s <= 0.95 * without.average_s
    assert known.slowest_s <= without.slowest_s
    assert known.merges >= 5
