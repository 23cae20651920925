"""Two runners on one node, on a real broker: each obeys its own commands, and neither disturbs the other."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from executors.lora.default_base import default_base_directory
from infra.topics import ensure_topics
from schemas.codec import Decision
from schemas.fleet import CommandRefused, NodeOffline, NodeOnline, RunFinished, RunProgressed, RunStarted
from schemas.kafka_connection import KafkaConnection
from schemas.lora_commands import RunCancelled
from schemas.topics import topics
from tests.support.counting_commands import CountCancelled, CountOrdered
from tests.support.entry_points import install_entry_point
from tests.support.executor_processes import Executors, executors
from tests.support.executors import CELL, CHAIN, TINY_RECIPE, order, write_dataset

NODE = "n1"
FOR_EVER = 10**6


@pytest.fixture(scope="module")
def base_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        return default_base_directory(TINY_RECIPE)


@pytest.fixture
def connection(kafka: str, topic_prefix: str) -> KafkaConnection:
    connection = KafkaConnection(bootstrap_servers=kafka)
    ensure_topics(connection, topics(topic_prefix, partitions=1, command_partitions=1))
    return connection


@pytest.fixture
def fleet(
    connection: KafkaConnection, topic_prefix: str, base_directory: Path, tmp_path: Path
) -> Iterator[Executors]:
    """One node that trains and counts."""
    (tmp_path / "datasets").mkdir()
    write_dataset(tmp_path / "datasets" / "pairs.jsonl")
    install_entry_point(tmp_path, "millrace.runners", "counting", "tests.support.counting:Counting")
    runners = ("lora", "counting")
    with executors(connection, topic_prefix, tmp_path, base_directory, runners=runners) as fleet:
        fleet.start(NODE)
        yield fleet


def count(job_id: str, goal: int, fails_at: int | None = None) -> CountOrdered:
    return CountOrdered(
        zone="z", node=NODE, run_id=f"counts/{job_id}", job_id=job_id, goal=goal, fails_at=fails_at
    )


def samples_of(fleet: Executors, job_id: str) -> int:
    """Return the samples of a run in its last report."""
    return max((run.samples_done for run in fleet.events_of(RunProgressed, job_id=job_id)), default=0)


def test_runners_share_time_and_obey_own_commands(fleet: Executors) -> None:
    assert fleet.await_event(NodeOnline).runners == ("lora", "counting")
    fleet.assign(NODE, order("trained", 10**6, work=10**6))
    fleet.command(count("counted", FOR_EVER))
    fleet.await_that(lambda: samples_of(fleet, "trained") > 40 and samples_of(fleet, "counted") > 40)

    # Either is cancelled by its own command alone, and the other goes on.
    fleet.command(CountCancelled(zone="z", node=NODE, job_id="trained"))
    fleet.command(RunCancelled(zone="z", node=NODE, job_id="counted"))
    fleet.command(CountCancelled(zone="z", node=NODE, job_id="counted"))
    fleet.await_that(lambda: fleet.journal(NODE).runners["counting"] is None)
    trained = samples_of(fleet, "trained")
    fleet.await_that(lambda: samples_of(fleet, "trained") > trained)
    assert fleet.over(NODE) == []

    fleet.command(count("second", 3))
    finished = fleet.await_event(RunFinished, job_id="second")
    assert (finished.run_id, finished.samples_done) == ("counts/second", 3)
    fleet.assign(NODE, order("next", 8, work=8))
    assert fleet.await_event(RunFinished, job_id="next").run_id == f"{fleet.slot}/next"
    assert fleet.events_of(RunFinished, job_id="counted") == []


def test_killed_node_resumes_runs_of_both_runners(fleet: Executors) -> None:
    fleet.assign(NODE, order("done", 8), order("trained", 10**6, work=10**6))
    fleet.command(count("counted", FOR_EVER))
    fleet.await_that(lambda: fleet.checkpoints("trained") and samples_of(fleet, "counted") > 20)
    fleet.stop(NODE, signal.SIGKILL)
    fleet.listen(0.5)
    counted = fleet.journal(NODE).runners["counting"]["count"]
    saved = max(samples for _, samples in fleet.checkpoints("trained"))

    fleet.start(NODE)

    assert (
        fleet.await_that(lambda: fleet.events_of(RunStarted, job_id="counted")[1:])[-1].samples_done
        == counted
    )
    assert (
        fleet.await_that(lambda: fleet.events_of(RunStarted, job_id="trained")[1:])[-1].samples_done == saved
    )
    assert len(fleet.events_of(RunStarted, job_id="done")) == 1
    assert counted >= 20

    assert fleet.stop(NODE, signal.SIGTERM) == 0
    fleet.await_event(NodeOffline)
    for job_id in ("trained", "counted"):
        (complete,) = fleet.events_of(RunProgressed, job_id=job_id, complete=True)[-1:]
        assert complete.samples_done == samples_of(fleet, job_id)


@pytest.mark.parametrize("fails_at", [0, 5], ids=["as it is told", "at work"])
def test_failed_runner_leaves_the_other_running(fleet: Executors, fails_at: int) -> None:
    fleet.await_event(NodeOnline)
    fleet.assign(NODE, order("trained", 10**6, work=10**6))
    fleet.await_that(lambda: samples_of(fleet, "trained") > 40)

    failing = fleet.command(count("doomed", 10, fails_at))
    fleet.await_that(lambda: len(fleet.events_of(NodeOnline)) == 2)

    assert fleet.events_of(NodeOnline)[-1].runners == ("lora",)
    trained = samples_of(fleet, "trained")
    fleet.await_that(lambda: samples_of(fleet, "trained") > trained)
    assert len(fleet.events_of(RunStarted, job_id="trained")) == 1
    later = fleet.command(count("refused", 3))
    refused = fleet.await_event(CommandRefused, command_id=later.id)
    assert (refused.runner, refused.reason) == ("counting", "runner_failed")
    assert len(fleet.events_of(CommandRefused, command_id=failing.id)) == (1 if fails_at == 0 else 0)
    assert "runner failed runner=counting" in fleet.log(NODE)

    assert fleet.stop(NODE, signal.SIGTERM) == 0
    fleet.start(NODE)
    fleet.await_that(lambda: len(fleet.events_of(NodeOnline)) == 3)
    assert fleet.events_of(NodeOnline)[-1].runners == ("lora", "counting")


def test_refused_command_is_reported_and_next_obeyed(
    connection: KafkaConnection, topic_prefix: str, base_directory: Path, tmp_path: Path
) -> None:
    install_entry_point(tmp_path, "millrace.runners", "counting", "tests.support.counting:Counting")
    with executors(connection, topic_prefix, tmp_path, base_directory, runners=("counting",)) as fleet:
        fleet.start(NODE)
        fleet.await_event(NodeOnline)
        unknown = Decision(f"{CELL}-u", CELL, "e", time.time(), count("unknown", 3), CHAIN).canonical
        fleet.send(NODE, b"\x00 no command at all")
        fleet.send(NODE, unknown.replace(CountOrdered.TYPE.encode(), b"test.sum.ordered.v1"))
        fleet.send(
            NODE, unknown.replace(f"{CELL}-u".encode(), f"{CELL}-m".encode()).replace(b'"goal"', b'"g"')
        )
        lacking = fleet.command(RunCancelled(zone="z", node=NODE, job_id="j"))
        impossible = fleet.command(count("endless", 10**9))
        late = fleet.command(count("late", 0))
        fleet.command(count("next", 3))

        fleet.await_event(RunFinished, job_id="next")

        assert [(r.command_id, r.runner, r.reason) for r in fleet.events_of(CommandRefused)] == [
            (f"{CELL}-u", None, "unknown_type"),
            (f"{CELL}-m", "counting", "malformed"),
            (lacking.id, "lora", "runner_missing"),
            (impossible.id, "counting", "impossible"),
            (late.id, "counting", "out_of_date"),
        ]
        assert [run.job_id for run in fleet.events_of(RunStarted)] == ["next"]
        fleet.await_that(lambda: fleet.journal(NODE).next_offset == 7)
        for line in (
            "command unreadable",
            f"command refused id={lacking.id}",
            f"command refused id={late.id}",
            "it is counted already",
        ):
            assert line in fleet.log(NODE)
        assert fleet.stop(NODE, signal.SIGTERM) == 0
