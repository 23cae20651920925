"""No job waits for ever, whatever others submit."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.changes import NodeCordoned, NodeUncordoned
from schemas.elastic.outcomes import JobResized
from tests.streams.elastic.flood import PATIENCE_S, Flood, turns_of, zone_of
from tests.support.elastic import (
    CELL,
    GPUS,
    INTERVAL_S,
    ElasticBench,
    elastic_cell,
    submit,
    tick,
)
from tests.support.examples import examples


def test_overtaken_job_starts_after_its_patience():
    flood = Flood(zone_of(), gpus=8)
    flood.round()
    flood.bench.send(submit("long", 3_000, user="ann"))
    while "long" not in flood.started_s:
        outcomes = flood.round()
    assert flood.started_s["long"] == INTERVAL_S + PATIENCE_S
    (change,) = (each for each in outcomes if isinstance(each, JobResized) and each.job_id == "long")
    assert change.facts == {"case": "waited_too_long"}


@pytest.mark.parametrize("workers", [(8, 1), (2, 4)])
def test_servers_are_held_for_whole_server_job(workers):
    count, size = workers
    flood = Flood(zone_of(), gpus=8)
    flood.round()
    flood.bench.send(submit("wide", 3_000, (count, count), user="ann", gpus_per_worker=size))
    while "wide" not in flood.started_s:
        flood.round()
    # Then the jobs that run there must end.
    waited_s = flood.started_s["wide"] - INTERVAL_S - PATIENCE_S
    assert 0 < waited_s <= 5 * INTERVAL_S


def test_wide_job_without_patience_waits_behind_small_ones():
    bench = ElasticBench()
    bench.send(elastic_cell(2), tick(0.0))
    flood = Flood(bench, gpus=8)
    flood.round()
    bench.send(submit("wide", 3_000, (2, 2), user="ann", gpus_per_worker=4))
    for _ in range(60):
        flood.round()
    assert "wide" not in flood.started_s


def test_unstartable_job_passes_its_turn():
    flood = Flood(zone_of(), gpus=8)
    flood.round()
    flood.bench.send(submit("both", 60, (2, 2), user="ann", gpus_per_worker=4))
    flood.bench.send(submit("wide", 60, (1, 1), user="ben", gpus_per_worker=4))
    flood.bench.send(NodeCordoned(cell=CELL, node="s1"))
    while "wide" not in flood.started_s:
        flood.round()
    assert flood.started_s["wide"] <= INTERVAL_S + PATIENCE_S + 5 * INTERVAL_S
    assert "both" not in flood.started_s
    flood.bench.send(NodeUncordoned(cell=CELL, node="s1"))
    while "both" not in flood.started_s:
        flood.round()
    assert flood.started_s["both"] <= flood.started_s["wide"] + 6 * INTERVAL_S


def test_servers_are_not_held_for_late_jobs():
    """It declared a minute, and runs on and on."""
    flood = Flood(zone_of(), gpus=8)
    flood.bench.send(submit("liar", 60, user="liar"))
    flood.round()
    flood.ends.pop("liar")
    flood.bench.send(submit("wide", 60, (1, 1), user="ben", gpus_per_worker=4))
    while "wide" not in flood.started_s:
        flood.round()
    assert flood.started_s["wide"] <= INTERVAL_S + PATIENCE_S + 5 * INTERVAL_S


@pytest.mark.slow
def test_held_servers_cost_other_jobs_little():
    flood = Flood(zone_of(servers=3), gpus=0)
    flood.bench.send(submit("month", 30 * 86_400, user="ann"))
    flood.round()
    flood.gpus = 12
    flood.bench.send(submit("wide", 60, (3, 3), user="ben", gpus_per_worker=4))
    for _ in range(60):
        flood.round()
    assert len({server for servers in turns_of(flood.bench).values() for server in servers}) == 3
    assert len(flood.ends) == 12, "all GPUs are in use"


def test_month_long_wait_blocks_no_other_turns():
    """One user holds all servers, with a long job and one that needs them all, and floods what is held with
    jobs that end in time."""
    flood = Flood(zone_of(servers=3), gpus=0)
    flood.bench.send(submit("month", 30 * 86_400, user="flooder"))
    flood.round()
    flood.bench.send(submit("all", 60, (3, 3), user="flooder", gpus_per_worker=4))
    while not turns_of(flood.bench):
        flood.round()
    assert {job: len(held) for job, held in turns_of(flood.bench).items()} == {"all": 3}
    flood.gpus = 12
    flood.round()
    flood.bench.send(
        submit("whole", 300, gpus_per_worker=4, user="ben"), submit("longish", 30_000, user="cid")
    )
    since_s = flood.time_s
    while not {"whole", "longish"} <= flood.started_s.keys():
        flood.round()
    assert flood.started_s["whole"] <= since_s + PATIENCE_S + 5 * INTERVAL_S
    assert flood.started_s["longish"] <= flood.started_s["whole"] + 6 * INTERVAL_S
    assert "all" in turns_of(flood.bench)


def test_four_users_have_turns_at_a_time():
    flood = Flood(zone_of(servers=3), gpus=0)
    flood.bench.send(submit("month", 30 * 86_400, user="ann"))
    flood.round()
    wide = [
        submit(f"{user}-{number}", 60, (3, 3), user=user, gpus_per_worker=4)
        for number in range(2)
        for user in ("ben", "cid", "dan", "eve", "fay")
    ]
    flood.bench.send(*wide)
    for _ in range(30):
        flood.round()
    assert list(turns_of(flood.bench)) == ["ben-0", "cid-0", "dan-0", "eve-0"]


@pytest.mark.parametrize(("workers", "size"), [(2, 4), (1, 4), (8, 1)])
@pytest.mark.parametrize(("declared_s", "real_s"), [(60, 180), (60, 7_200), (600, 1_500)])
def test_overlong_jobs_delay_but_keep_turn(workers, size, declared_s, real_s):
    flood = Flood(zone_of(), gpus=1, declared_s=declared_s, real_s=real_s)
    for _ in range(5):
        flood.round()
    flood.bench.send(submit("wide", 300, (workers, workers), user="ben", gpus_per_worker=size))
    since_s = flood.time_s
    while "wide" not in flood.started_s:
        flood.round()
    # Those that run when its patience is over, and those that start until the promised time.
    assert flood.started_s["wide"] - since_s <= PATIENCE_S + 2 * real_s + declared_s + 5 * INTERVAL_S


def test_late_promised_servers_are_replaced():
    """A job declares half an hour, and runs on and on; the job on the other server has an hour to go."""
    flood = Flood(zone_of(), gpus=0)
    flood.bench.send(submit("liar", 1_800, user="liar", gpus_per_worker=3))
    flood.bench.send(submit("honest", 5_400, user="ann", gpus_per_worker=3))
    flood.round()
    flood.ends.pop("liar")
    flood.bench.send(submit("wide", 60, user="ben", gpus_per_worker=4))
    held = []
    while "wide" not in flood.started_s:
        flood.round()
        held += [servers for servers in turns_of(flood.bench).values() if [servers] != held[-1:]]
    assert held == [("s0",), ("s1",)]
    assert flood.started_s["wide"] == INTERVAL_S + 5_400


def test_later_turn_uses_servers_after_earlier_one():
    """The flood declares ten minutes and runs for thirty, so that a job of its own has the first turn, and
    keeps it for long."""
    flood = Flood(zone_of(servers=3), gpus=12, declared_s=600, real_s=1_800)
    flood.round()
    flood.round()
    flood.bench.send(submit("wide", 6 * 739, (6, 6), user="ann", gpus_per_worker=2))
    for _ in range(int(PATIENCE_S / INTERVAL_S)):
        flood.round()
    first, behind = flood.bench.described["turns"]
    assert (first["user"], first["held"]) == ("flooder", ["s0"])
    assert set(behind["held"]) == {"s0", "s1", "s2"}
    # Late since 660 s, the first one should start as much later, and be over after the ten minutes.
    assert behind["by_s"] == flood.time_s + (flood.time_s - first["by_s"]) + 600
    while flood.time_s < 2 * 1_800 + INTERVAL_S:
        flood.round()
    # Who runs at first is over after half an hour, and the job of the first turn after another one.
    assert [job for job, started_s in flood.started_s.items() if started_s == 1_860.0] == [first["job_id"]]
    assert flood.started_s["wide"] == 1_860.0 + 1_800


def test_wide_job_is_not_skipped_between_turns():
    flood = Flood(zone_of(), gpus=8, declared_s=600, real_s=1_800, users=("dan", "eve", "fay"))
    flood.round()
    flood.bench.send(submit("wide", 8 * 300, (8, 8), user="ann"))
    while flood.time_s < PATIENCE_S + 4 * 1_800:
        flood.round()
    assert "wide" in flood.started_s


@pytest.mark.long
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=313755)
@example(seed=100)
@settings(max_examples=examples(100), deadline=None)
def test_flood_of_one_user_delays_no_others(seed):
    """Each job is overtaken until its patience is over, and then waits for whoever has the turn before it and
    for those that run on its servers."""
    rng = random.Random(seed)
    servers = rng.randint(2, 3)
    declared_s, real_s = rng.choice([(0, 0), (60, 60), (60, 600), (600, 1_800)])
    flood = Flood(zone_of(servers), GPUS * servers, declared_s, real_s)
    # Of those that are given a turn one after the other, each waits for what runs there, and may run 900 s.
    assert_that_others_start(rng, flood, servers, a_turn_s=declared_s + max(real_s, 180) + 900)


@pytest.mark.long
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(100), deadline=None)
def test_flood_of_several_users_delays_no_others(seed):
    """Jobs of any width that run longer than declared, or shorter."""
    rng = random.Random(seed)
    servers = rng.randint(1, 3)
    size = rng.choice([1, 2, 4])
    workers = rng.choice([1, rng.randint(1, servers * (GPUS // size))])
    declared_s, real_s = rng.choice([(0, 0), (1, 600), (60, 3_600), (600, 1_800), (600, 60), (40_000, 120)])
    flood = Flood(
        zone_of(servers),
        rng.choice([2, GPUS * servers]),
        declared_s,
        real_s,
        users=tuple(f"flooder-{number}" for number in range(rng.randint(1, 4))),
        workers=(workers, workers + rng.choice([0, 0, 2])),
        gpus_per_worker=size,
    )
    # Each may wait for those that start until the promised time, and these run on after it.
    assert_that_others_start(rng, flood, servers, a_turn_s=2 * max(real_s, 180) + 900)


def assert_that_others_start(rng: random.Random, flood: Flood, servers: int, a_turn_s: float) -> None:
    """Assert that jobs of the first minutes start within their patience and a turn of each user."""
    jobs: list[str] = []
    for number in range(12):
        flood.round()
        if rng.random() < 0.3:
            size = rng.choice([1, 2, 4])
            workers = rng.randint(1, servers * (GPUS // size))
            most = workers + rng.choice([0, 0, 2])
            work_s = rng.randint(60, 900) * workers
            jobs.append(f"honest-{number}")
            flood.bench.send(
                submit(jobs[-1], work_s, (workers, most), user=f"user-{number}", gpus_per_worker=size)
            )
    rounds = int((PATIENCE_S + (len(jobs) + len(flood.users)) * a_turn_s) / INTERVAL_S)
    for _ in range(rounds):
        flood.round()
        if flood.started_s.keys() >= set(jobs):
            break
    assert flood.started_s.keys() >= set(jobs)
