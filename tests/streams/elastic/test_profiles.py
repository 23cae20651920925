"""Jobs without a declared speed, and jobs that declare a wrong one: measured steps count."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.decisions import EventIgnored, JobAdmitted, JobQuoted
from schemas.elastic.outcomes import ElasticForecast, JobProfiled, QueuedJob
from schemas.elastic.staffing import ZoneStaffed
from schemas.elastic.workload import ElasticTerms
from schemas.jobs import JobQuoteRequested
from schemas.profiles import ProfileKey, ProfilePoint, ProfileReported
from tests.streams.elastic.measured_rounds import BATCH, Rounds, measured, only, orders, step_s, undeclared
from tests.support.elastic import (
    CELL,
    INTERVAL_S,
    ZONE,
    ElasticBench,
    progressed,
    started,
    submit,
    workload,
)

DAY_S = 86_400.0


def quote(bench: ElasticBench, user: str = "ann", **fields: Any) -> ElasticForecast:
    asked = workload(6_400.0, (1, 4), **{"samples_per_s": None, **fields})
    request = JobQuoteRequested(
        cell=CELL, quote_id="q", user=user, zone=ZONE, workload=asked, terms=ElasticTerms()
    )
    evidence = only(JobQuoted, bench.send(request)).evidence
    assert isinstance(evidence, ElasticForecast)
    return evidence


def test_unknown_job_runs_on_base_demand_until_measured() -> None:
    rounds = Rounds()
    (order,) = orders(rounds.next(undeclared("j")))
    assert sum(member.workers for member in order.members) == 1
    assert not orders(rounds.next(started(order)))
    profiled = only(JobProfiled, rounds.bench.send(measured(order)))
    assert (profiled.expected_from, profiled.workers) == ("assumed", 1)
    assert profiled.samples_per_s == pytest.approx(4.0)
    assert profiled.profile_gpu_s == 30.0
    (wider,) = orders(rounds.next())
    assert sum(member.workers for member in wider.members) == 4


def test_scaling_is_measured_when_width_changes() -> None:
    rounds = Rounds()
    (order,) = orders(rounds.next(undeclared("j")))
    rounds.bench.send(started(order), measured(order))
    (wider,) = orders(rounds.next())
    assert wider.expected_samples_per_s == pytest.approx(16.0), "one point shows no loss"
    profiled = only(JobProfiled, rounds.bench.send(started(wider), measured(wider, 2 * BATCH)))
    assert profiled.expected_from == "measured"
    assert profiled.samples_per_s == pytest.approx(BATCH / step_s(4))
    described = rounds.bench.zone.describe()["jobs"]["j"]
    assert described["samples_per_s"] == pytest.approx(4.0)
    assert profiled.remaining_s == pytest.approx((6_400 - BATCH) / profiled.samples_per_s, rel=0.02)
    assert quote(rounds.bench).latest_end_s - quote(rounds.bench).start_s == pytest.approx(1_600.0)
    assert quote(rounds.bench).earliest_end_s - quote(rounds.bench).start_s == pytest.approx(
        6_400 / BATCH * step_s(4)
    )


def test_tenth_job_of_a_kind_needs_no_profile() -> None:
    rounds = Rounds()
    rounds.run("first")
    outcomes = rounds.next(undeclared("next"))
    place = only(JobAdmitted, outcomes).evidence
    assert isinstance(place, QueuedJob)
    assert place.speed_from == "measured"
    (order,) = orders(outcomes)
    assert sum(member.workers for member in order.members) == 4


def test_quote_states_source_and_error() -> None:
    rounds = Rounds()
    unknown = quote(rounds.bench)
    assert (unknown.speed_from, unknown.duration_error_pct) == ("assumed", None)
    assert unknown.latest_end_s - unknown.start_s == DAY_S
    assert quote(rounds.bench, samples_per_s=1.0).speed_from == "declared"
    rounds.run("first")
    known = quote(rounds.bench, samples_per_s=1.0)
    assert (known.speed_from, known.duration_error_pct) == ("measured", 50.0)
    assert known.latest_end_s - known.start_s == pytest.approx(1_600.0), "measured counts before declared"


def test_runs_of_others_count_from_three_users() -> None:
    rounds = Rounds()
    for user in ("a", "b"):
        rounds.run(user, user=user)
    assert quote(rounds.bench, user="eve").speed_from == "assumed"
    rounds.run("c", user="c", sample_s=100.0)
    known = quote(rounds.bench, user="eve")
    assert known.speed_from == "measured"
    assert known.latest_end_s - known.start_s == pytest.approx(1_600.0), "one of three moves no median"


def test_published_profile_counts_until_measured() -> None:
    rounds = Rounds()
    key = ProfileKey(
        base_model="models/tiny", sequence_tokens=64, rank=0, target_modules=(), precision="float32"
    )
    points = tuple(
        ProfilePoint(
            gpu_type="V100",
            gpus=gpus,
            micro_batch_size=8,
            step_s=1.0 + 0.1 * (gpus > 1),
            exchange_s=0.1 * (gpus > 1),
            tokens_per_sample=40.0,
            steps=10,
        )
        for gpus in (1, 4)
    )
    rounds.bench.send(ProfileReported(cell=CELL, zone=ZONE, profiler="lab", key=key, points=points))
    offline = quote(rounds.bench)
    assert offline.speed_from == "offline"
    assert offline.latest_end_s - offline.start_s == pytest.approx(6_400 / 8)
    rounds.run("first")
    known = quote(rounds.bench)
    assert known.speed_from == "measured"
    assert known.latest_end_s - known.start_s > 1_000.0


def test_profile_faster_than_a_node_is_refused() -> None:
    rounds = Rounds()
    key = ProfileKey(
        base_model="models/tiny", sequence_tokens=64, rank=0, target_modules=(), precision="float32"
    )
    point = ProfilePoint(
        gpu_type="V100", micro_batch_size=4_096, step_s=4_096 / 1e6, tokens_per_sample=40.0, steps=10
    )
    event = ProfileReported(cell=CELL, zone=ZONE, profiler="lab", key=key, points=(point,))
    (ignored,) = rounds.bench.send(event)
    assert isinstance(ignored, EventIgnored)
    assert (ignored.reason, ignored.facts["case"]) == ("profile_refused", "faster_than_node")
    assert quote(rounds.bench).speed_from == "assumed"


def test_waiting_jobs_of_a_kind_learn_from_first() -> None:
    rounds = Rounds()
    (order,) = orders(rounds.next(undeclared("first", workers=(4, 4))))
    rounds.next(undeclared("second", workers=(4, 4)))
    assert rounds.bench.zone.describe()["jobs"]["second"]["speed_from"] == "assumed"
    rounds.bench.send(started(order), measured(order))
    assert rounds.bench.zone.describe()["jobs"]["second"]["speed_from"] == "measured"


def test_job_without_measured_steps_goes_by_progress() -> None:
    rounds = Rounds()
    (order,) = orders(rounds.next(undeclared("j")))
    rounds.next(started(order))
    profiled = only(JobProfiled, rounds.bench.send(progressed(order, 240)))
    assert profiled.samples_per_s == pytest.approx(240 / INTERVAL_S)


def test_turn_states_error_of_the_jobs_before_it() -> None:
    rounds = Rounds()
    (order,) = orders(rounds.next(undeclared("first", 10**6, workers=(4, 4))))
    rounds.next(started(order), measured(order), undeclared("second", 10**6, workers=(4, 4), user="bob"))
    rounds.bench.send(measured(order, 2 * BATCH))
    rounds.number = 360
    rounds.next()
    rounds.number += 9
    outcomes = rounds.next(submit("third", 60.0, (4, 4)))
    (turn,) = only(ZoneStaffed, outcomes).turns
    assert turn.job_id == "second"
    assert turn.duration_error_pct is not None


@given(
    st.lists(st.tuples(st.floats(1e-4, 1e3), st.floats(0, 1e3), st.integers(0, 2)), min_size=1, max_size=12)
)
def test_any_measured_steps_keep_speeds_finite(history: list[tuple[float, float, int]]) -> None:
    rounds = Rounds()
    (order,) = orders(rounds.next(undeclared("j", 10**6)))
    rounds.bench.send(started(order))
    for number, (sample_s, exchange_s, ticks) in enumerate(history, start=1):
        rounds.bench.send(measured(order, number * BATCH, sample_s=sample_s, exchange_s=exchange_s))
        for _ in range(ticks):
            for wider in orders(rounds.next()):
                order = wider
                rounds.bench.send(started(order))
    job = rounds.bench.zone.describe()["jobs"]["j"]
    assert 0 < job["samples_per_s"] <= 1e9
    assert 0 <= job["duration_error_pct"] <= 1_600
    forecast = quote(rounds.bench)
    assert forecast.start_s <= forecast.earliest_end_s <= forecast.latest_end_s
