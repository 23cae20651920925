"""Figures of small simulations equal those computed by hand."""

from collections.abc import Sequence

import pytest

from infra.figures.distribution import Distribution
from infra.figures.elastic.figures import ElasticFigures
from infra.figures.summary import summarise
from infra.simulation.simulator import Simulation
from infra.workloads.timed import TimedEvent
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.decisions import JobCompleted
from schemas.elastic.outcomes import JobResized
from schemas.jobs import JobSubmitted
from tests.infra.simulation.elastic.lending import at, lending_cell, load, offer, reclaim
from tests.support.boards import board_of
from tests.support.elastic import elastic_cell, submit, withdraw


def measured(cell: CellConfigured, *inputs: TimedEvent[Event]) -> ElasticFigures:
    return summarise(board_of(Simulation(cell, inputs))).part(ElasticFigures)


def jobs_of(zone: ElasticFigures) -> dict[str, dict]:
    return {str(row["job_id"]): dict(row) for row in zone.tables()["jobs"]}


def test_jobs_wait_for_each_other():
    # Rounds are at full minutes: a runs from 60 to 660, b from then on to 960, both on all four GPUs.
    zone = measured(
        elastic_cell(1), at(30.0, submit("a", 2_400.0, (4, 4))), at(90.0, submit("b", 1_200.0, (4, 4)))
    )
    figures, jobs = zone.results(), jobs_of(zone)
    assert (figures.jobs, figures.completed) == (2, 2)
    assert [(job["started_s"], job["ended_s"]) for job in jobs.values()] == [(60.0, 660.0), (660.0, 960.0)]
    assert [(job["queuing_s"], job["jct_s"]) for job in jobs.values()] == [(30.0, 630.0), (570.0, 870.0)]
    assert figures.queuing == Distribution(300.0, {50: 300.0, 75: 435.0, 95: 543.0, 99: 564.6})
    assert figures.jct.mean_s == 750.0
    assert figures.span_s == 90.0, "to the last job"
    assert figures.training_usage == figures.overall_usage == 30 * 4 / (90 * 4)
    assert (figures.preemptions, figures.reclaims, figures.on_loan_usage) == (0, 0, 0.0)


PREEMPTED: Sequence[TimedEvent[Event]] = (
    at(30.0, submit("own", 1_600.0, (4, 4))),
    load(60.0, 0.25),
    offer(61.0, "t0", "t1"),
    at(90.0, submit("guest", 900.0, fungible=True)),
    reclaim(300.0, 2, 600.0),
    load(1_200.0, 0.5),
)
"""One server of its own, which "own" has from 60 to 460. "guest" runs on three of the slow GPUs, each a
third as fast (erratum L4), from 120 to 300, when 180 of its samples are done. From 480 on it is on the
server; it is charged 63 s and ends at 480 + 63 + 720."""


def test_long_job_of_unknown_speed_runs_once():
    simulation = Simulation(elastic_cell(1), [at(30.0, submit("j", 10 * 3_600.0, samples_per_s=None))])
    decided = [type(each.outcome) for step in simulation.steps() for each in step.decisions]
    assert decided.count(JobResized) == 1, "its silent runs would be lost"
    assert decided.count(JobCompleted) == 1


def test_preempted_job_waits_and_pays_for_checkpoint():
    zone = measured(lending_cell(1, 3), *PREEMPTED)
    guest, figures = jobs_of(zone)["guest"], zone.results()
    assert guest["ended_s"] == 480 + 63 + 720
    assert guest["running_time_error_pct"] == pytest.approx(0.0, abs=1e-9), "no start is running time"
    assert guest["queuing_s"] == 30 + 180
    assert (guest["preemptions"], guest["resizes"], guest["was_on_loaned"]) == (1, 0, True)
    assert figures.queuing.mean_s == (30 + 210) / 2
    assert figures.jct.mean_s == (430 + 1_173) / 2
    assert (figures.preemptions, figures.preemption_ratio) == (1, 0.5)


def test_usage_by_kind_ends_with_last_input():
    figures = measured(lending_cell(1, 3), *PREEMPTED).results()
    own, guest, serving = 400 * 4 + 720, 180 * 3, 1_140 * 3
    assert figures.span_s == 1_200.0
    assert figures.training_usage == own / (1_200 * 4)
    assert figures.on_loan_usage == guest / ((300 - 61) * 8)
    assert figures.overall_usage == (own + guest + serving) / (1_200 * 16)


def test_reclaims_are_counted_with_what_they_cost():
    figures = measured(lending_cell(1, 3), *PREEMPTED).results()
    assert (figures.reclaims, figures.reclaimed_servers, figures.flexible_servers) == (1, 2, 1)
    assert (figures.collateral_damage, figures.overdue_reclaims) == (0.0, 0)


def test_collateral_damage_is_what_preempted_jobs_leave_elsewhere():
    # Six slow GPUs on two servers: each costs half a preemption, and the one with four GPUs spares more.
    figures = measured(
        lending_cell(1, 3),
        at(30.0, submit("own", 1_600.0, (4, 4))),
        load(60.0, 0.25),
        offer(61.0, "t0", "t1"),
        at(90.0, submit("guest", 900.0, (2, 2), fungible=True)),
        reclaim(300.0, 1, 600.0),
    ).results()
    assert (figures.preemptions, figures.reclaimed_servers) == (1, 1)
    assert figures.collateral_damage == 2 / 4


def test_usage_by_the_hour_adds_up():
    zone = measured(elastic_cell(1), at(30.0, submit("long", 4 * 5_400.0, (4, 4))))
    usage = zone.tables()["usage"]
    assert [(row["start_s"], row["length_s"]) for row in usage] == [(0.0, 3_600.0), (3_600.0, 1_860.0)]
    assert [row["used_own_gpus"] for row in usage] == [4 * 3_540 / 3_600, 4.0]


def test_withdrawn_job_counts_only_as_submitted():
    zone = measured(
        elastic_cell(1),
        at(30.0, submit("a", 2_400.0, (4, 4))),
        at(90.0, submit("b", 1_200.0, (4, 4))),
        at(200.0, withdraw("b")),
    )
    figures, withdrawn = zone.results(), jobs_of(zone)["b"]
    assert (figures.jobs, figures.completed) == (2, 1)
    assert figures.jct.mean_s == 630.0
    assert (withdrawn["state"], withdrawn["started_s"], withdrawn["queuing_s"]) == ("withdrawn", None, 110.0)


def test_submission_under_used_id_changes_nothing():
    inputs = [at(30.0, submit("a", 2_400.0, (4, 4))), at(90.0, submit("a", 600.0, user="bob"))]
    zone = measured(elastic_cell(1), *inputs)
    assert jobs_of(zone)["a"]["jct_s"] == 630.0
    assert zone.results().jobs == 1


def test_a_job_that_fits_nowhere_is_rejected():
    zone = measured(elastic_cell(1), at(30.0, submit("wide", 600.0, (5, 5))))
    assert jobs_of(zone)["wide"]["state"] == "rejected"
    assert zone.results().queuing == Distribution(0.0, {50: 0.0, 75: 0.0, 95: 0.0, 99: 0.0})


@pytest.mark.parametrize("number", [1, 2, 5])
def test_percentiles_are_linear_between_ranks(number):
    times_s = [float(rank) for rank in range(100 * number + 1)]
    assert Distribution.of(times_s).percentiles_s == {
        percent: float(percent * number) for percent in (50, 75, 95, 99)
    }


def test_measures_take_jobs_of_their_zone_alone():
    cell = lending_cell(1, 1)
    job = submit("a", 600.0)
    assert isinstance(job, JobSubmitted)
    elsewhere = job.model_copy(update={"zone": "i", "job_id": "b"})
    zone = measured(cell, at(30.0, job), at(30.0, elsewhere))
    assert set(jobs_of(zone)) == {"a"}
