"""Jobs that start by a speed that they do not reach give way, and mere claims drive no job out."""

from typing import Any

import pytest

from schemas.base import Outcome
from schemas.elastic.commands import WorkersAssigned
from schemas.elastic.outcomes import JobResized
from schemas.profiles import ProfileKey, ProfilePoint, ProfileReported
from tests.streams.elastic.measured_rounds import BATCH, Rounds, measured, orders, undeclared
from tests.support.elastic import CELL, INTERVAL_S, ZONE, finished, started, submit

SLOW_S = 2.5
"""Time of a sequence on a node that seems ten times as slow as it is."""
FORGED_S = {"slow": 86_400.0, "fast": 41.0}


def resized(outcomes: list[Outcome]) -> list[tuple[str, str, int]]:
    return [(o.job_id, o.reason, o.workers) for o in outcomes if isinstance(o, JobResized)]


def with_measured_honest_kind() -> Rounds:
    """Rounds in which a user's jobs of model `models/honest` have a measured speed."""
    rounds = Rounds()
    (order,) = orders(rounds.next(undeclared("before", workers=(1, 1), model="models/honest")))
    rounds.bench.send(started(order), measured(order))
    rounds.next(finished(order))
    return rounds


def honest(samples: float = 640.0) -> Any:
    return undeclared("honest", samples, (4, 4), model="models/honest")


def begun(rounds: Rounds, **fields: Any) -> WorkersAssigned:
    """A long job that claims 25 times its speed and starts; a shorter job of measured speed waits."""
    (order,) = orders(rounds.next(submit("liar", 6_400.0, (4, 4), "eve", samples_per_s=100.0, **fields)))
    rounds.next(started(order), honest())
    return order


def test_liar_gives_way_after_two_reports() -> None:
    rounds = with_measured_honest_kind()
    order = begun(rounds)
    assert not resized(rounds.next(measured(order)))
    assert resized(rounds.next(measured(order, 2 * BATCH))) == [
        ("liar", "gave_way", 0),
        ("honest", "started", 4),
    ]


def test_one_slow_report_costs_no_place() -> None:
    rounds = with_measured_honest_kind()
    order = begun(rounds)
    for samples, sample_s in ((1, 0.25), (2, 0.01), (3, 0.25), (4, 0.01)):
        report = measured(order, samples * BATCH, sample_s=sample_s, exchange_s=0.0)
        assert not resized(rounds.next(report))


def test_job_without_checkpoints_keeps_its_work() -> None:
    rounds = with_measured_honest_kind()
    order = begun(rounds, keeps_checkpoints=False)
    for number in range(1, 5):
        assert not resized(rounds.next(measured(order, number * BATCH, sample_s=SLOW_S)))


def test_unmeasured_claim_drives_no_job_out() -> None:
    rounds = Rounds()
    (order,) = orders(rounds.next(submit("victim", 6_400.0, (4, 4), samples_per_s=4.0)))
    rounds.next(started(order), submit("claim", 64.0, (4, 4), "eve", samples_per_s=1e6, model="models/eve"))
    for number in range(1, 5):
        assert not resized(rounds.next(measured(order, number * BATCH, sample_s=SLOW_S)))


def test_liar_gives_way_to_job_with_turn() -> None:
    rounds = Rounds()
    (order,) = orders(rounds.next(submit("liar", 10**6, (4, 4), "eve", samples_per_s=10**4)))
    rounds.next(started(order), submit("honest", 640.0, (4, 4), samples_per_s=4.0))
    for number in (1, 2):
        assert not resized(rounds.next(measured(order, number * BATCH)))
    rounds.number = int(21_600 / INTERVAL_S) + 1
    assert resized(rounds.next()) == [("liar", "gave_way", 0), ("honest", "started", 4)]


def test_scattered_room_drives_no_job_out() -> None:
    rounds = Rounds(servers=2)
    for number in range(2):
        wide = submit(f"wide-{number}", 10**6, gpus_per_worker=3, samples_per_s=4.0, user="bob")
        (order,) = orders(rounds.next(wide))
        rounds.bench.send(started(order))
    (order,) = orders(rounds.next(submit("victim", 6_400.0, samples_per_s=100.0)))
    rival = undeclared("rival", 1.0, (1, 1), user="eve", gpus_per_worker=2)
    rounds.next(started(order), rival)
    for number in range(1, 5):
        assert not resized(rounds.next(measured(order, number * BATCH)))


@pytest.mark.parametrize("declared", [None, 100.0])
def test_short_records_make_no_kind_fast(declared: float | None) -> None:
    rounds = with_measured_honest_kind()
    (bait,) = orders(rounds.next(undeclared("bait", 64.0, (4, 4), user="eve")))
    report = measured(bait, sample_s=1e-4, exchange_s=0.0)
    assert report.measured is not None
    short = report.measured.model_copy(update={"tokens_per_sample": 1.0})
    rounds.bench.send(started(bait), report.model_copy(update={"measured": short}))
    rounds.next(finished(bait))
    liar = submit("liar", 6_400.0, (4, 4), "eve", samples_per_s=declared)
    (order,) = orders(rounds.next(liar))
    described = rounds.bench.zone.describe()["jobs"]["liar"]
    assert described["speed_from"] == ("assumed" if declared is None else "declared")
    rounds.next(started(order), honest())
    rounds.next(measured(order))
    gives_way = resized(rounds.next(measured(order, 2 * BATCH)))
    assert (("liar", "gave_way", 0) in gives_way) == (declared is not None)


def forged(speed: str) -> ProfileReported:
    key = ProfileKey(
        base_model="models/tiny",
        sequence_tokens=64,
        rank=0,
        target_modules=(),
        precision="float32",
        dataset="data.jsonl",
    )
    point = ProfilePoint(
        gpu_type="V100",
        micro_batch_size=4_096,
        step_s=FORGED_S[speed],
        tokens_per_sample=40.0,
        steps=10,
    )
    return ProfileReported(cell=CELL, zone=ZONE, profiler="lab", key=key, points=(point,))


@pytest.mark.parametrize("speed", FORGED_S)
def test_published_profile_corrects_no_declared_speed(speed: str) -> None:
    """The profile is of the model of the short job, or of the long one."""
    rounds = Rounds()
    rounds.bench.send(forged(speed))
    short, long = ("models/tiny", "models/other") if speed == "slow" else ("models/other", "models/tiny")
    outcomes = rounds.next(
        submit("short", 64.0, (4, 4), samples_per_s=4.0, model=short),
        submit("long", 6_400.0, (4, 4), "eve", samples_per_s=4.0, model=long),
    )
    assert resized(outcomes) == [("short", "started", 4)]


def test_job_that_starts_by_forged_profile_gives_way() -> None:
    rounds = with_measured_honest_kind()
    rounds.bench.send(forged("fast"))
    (order,) = orders(rounds.next(undeclared("liar", 6_400.0, (4, 4), user="eve"), honest()))
    assert order.job_id == "liar"
    rounds.next(started(order))
    assert not resized(rounds.next(measured(order)))
    assert resized(rounds.next(measured(order, 2 * BATCH)))[0] == ("liar", "gave_way", 0)
