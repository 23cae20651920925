"""Figures of small simulations equal those computed by hand."""

import pytest

from infra.figures.distribution import Distribution
from infra.figures.merging.evaluation import MergingEvaluation
from infra.figures.merging.figures import MergingFigures
from infra.figures.summary import summarise
from infra.views.figures import zone_rows
from schemas.cells import CellConfigured
from tests.infra.simulation.merging.small import (
    ShortTruth,
    SmallTruth,
    merging_cell,
    simulation,
    submit,
    withdraw,
)
from tests.support.boards import board_of

JOBS = [(1.0, submit("zero")), (20.0, submit("one")), (21.0, submit("two"))]
"""Jobs of one task, for one GPU. "zero" has it from 10 s to 610 s; the others are merged then, if they may
be."""
GAINING = SmallTruth({("a", "a"): 3})


def measured(cell: CellConfigured, inputs=JOBS, truth: SmallTruth | None = None) -> MergingFigures:
    return summarise(board_of(simulation(cell, inputs, truth))).part(MergingFigures)


def figures(zone: MergingFigures) -> MergingEvaluation:
    return zone.evaluation()


def jobs_of(zone: MergingFigures) -> dict[str, dict]:
    return {str(row["job_id"]): dict(row) for row in zone.tables()["jobs"]}


def test_completion_times_and_makespan_match_runs():
    zone = measured(merging_cell(modes=()))
    jobs, told = jobs_of(zone), figures(zone)
    starts_s = [job["started_s"] for job in jobs.values()]
    assert [
        round(job["ended_s"] - start_s) for job, start_s in zip(jobs.values(), starts_s, strict=True)
    ] == [
        600,
        600,
        600,
    ]
    # Of equal jobs the solver may take any first.
    assert [round(start_s) for start_s in sorted(starts_s)] == [10, 610, 1210]
    assert told.jct == Distribution.of([job["ended_s"] - job["submitted_s"] for job in jobs.values()])
    assert told.makespan_s == max(job["ended_s"] for job in jobs.values()) - 1.0
    assert (told.jobs, told.completed, told.merges_undone, told.saved_s) == (3, 3, 0, 0.0)
    assert (told.temporal_share, told.spatial_share) == (0.0, 0.0)


def test_a_chain_counts_for_both_of_its_jobs():
    zone = measured(merging_cell(modes=("temporal",)), truth=GAINING)
    told, jobs = figures(zone), jobs_of(zone)
    assert told.temporal_share == pytest.approx(2 / 3)
    assert (told.spatial_share, told.saved_s, told.merges_undone) == (0.0, 300.0, 0)
    assert [job["mode"] for job in jobs.values()] == ["normal", "temporal", "temporal"]
    assert (jobs["one"]["partner"], jobs["two"]["partner"]) == ("two", "one")
    assert (jobs["two"]["iterations"], jobs["two"]["saved_s"]) == (300, 300.0)
    (merge,) = zone.tables()["merges"]
    assert (merge["mode"], merge["job_id"], merge["partner"], merge["reason"]) == (
        "temporal",
        "two",
        "one",
        "finished",
    )
    assert merge["iterations_alone"] == 600


def test_two_jobs_in_one_run_count_as_spatial():
    told = figures(measured(merging_cell(modes=("spatial",)), truth=GAINING))
    assert told.spatial_share == pytest.approx(2 / 3)
    assert told.saved_s == 600.0, "three epochs each"


def test_undone_merge_is_counted_as_training_alone():
    zone = measured(merging_cell(modes=("temporal",)))
    told, jobs = figures(zone), jobs_of(zone)
    assert (told.merges_undone, told.temporal_share, told.completed) == (1, 0.0, 3)
    assert jobs["two"]["was_undone"]
    assert jobs["two"]["mode"] == "normal"
    assert jobs["two"]["partner"] is None


def test_half_undone_spatial_merge_counts_for_completed_job():
    jobs = [*JOBS[:2], (21.0, submit("two", "b"))]
    truth = ShortTruth({("b", "a"): 3}, short=frozenset("b"))
    zone = measured(merging_cell(modes=("spatial",)), jobs, truth)
    told, rows = figures(zone), jobs_of(zone)
    evaluated = {merge["job_id"]: merge["reason"] for merge in zone.tables()["merges"]}
    assert evaluated == {"one": "finished", "two": "undone"}
    assert {job_id: (row["mode"], row["partner"], row["was_undone"]) for job_id, row in rows.items()} == {
        "zero": ("normal", None, False),
        "one": ("spatial", "two", False),
        "two": ("normal", None, True),
    }
    assert (told.merges_undone, told.spatial_share) == (1, pytest.approx(1 / 3))


def test_errors_are_those_of_forecasts():
    told = figures(measured(merging_cell(modes=("temporal",)), truth=GAINING))
    # "zero" was expected to need the most, a thousand iterations; "one" 600, as "zero" had needed.
    assert (told.iterations_alone.jobs, told.iterations_merged.jobs, told.gain.pairs) == (2, 1, 1)
    assert told.iterations_alone.max_ape_pct == pytest.approx(100 * 400 / 600)
    assert told.iterations_merged.max_ape_pct is not None


def test_errors_are_means_over_completed_jobs():
    # The first job is expected to need all of a thousand iterations, and needs 600; the second 600 again.
    jobs = [(1.0, submit("zero")), (1_000.0, submit("one")), (3_000.0, submit("two"))]
    assert figures(measured(merging_cell(), [])).iterations_alone.mean_ape_pct is None
    alone = figures(measured(merging_cell(interval_s=120.0), jobs)).iterations_alone
    assert alone.max_ape_pct == pytest.approx(100 * 400 / 600)
    assert alone.mean_ape_pct == pytest.approx(100 * 400 / 600 / alone.jobs)


def test_finish_time_fairness_compares_with_fair_share():
    # Alone on one GPU, all of the time was its own: its profile run, 600 s of work, and ticks.
    zone = measured(merging_cell(), [(1.0, submit("one"))])
    rho = jobs_of(zone)["one"]["finish_time_fairness"]
    assert rho == pytest.approx(jobs_of(zone)["one"]["jct_s"] / 600)
    fair = figures(zone).fairness
    assert fair is not None
    assert (fair.mean, fair.worst, fair.hurt_share) == (rho, rho, 1.0)


def test_fairness_of_rival_uses_its_sizes():
    cell = merging_cell(scheme="tiresias")
    rho = jobs_of(measured(cell, [(1.0, submit("one"))]))["one"]["finish_time_fairness"]
    assert 1.0 < rho < 1.1


def test_withdrawn_job_counts_only_as_submitted():
    zone = measured(merging_cell(), [*JOBS[:2], (100.0, withdraw("one"))])
    told = figures(zone)
    assert (told.jobs, told.completed) == (2, 1)
    assert jobs_of(zone)["one"]["state"] == "withdrawn"
    assert jobs_of(zone)["one"]["finish_time_fairness"] is None


def test_a_job_of_another_base_model_is_rejected():
    zone = measured(merging_cell(), [(1.0, submit("one", model="other"))])
    assert jobs_of(zone)["one"]["state"] == "rejected"
    assert figures(zone).fairness is None


def test_values_are_plain(capsys):
    told = measured(merging_cell(modes=("temporal",)), truth=GAINING)
    found = told.as_json()
    assert found["jct"]["mean_s"] > 0
    assert found["iterations_merged"]["jobs"] == 1
    names = [name for name, _ in zone_rows(told)]
    assert len(names) == len(set(names)) == 12
