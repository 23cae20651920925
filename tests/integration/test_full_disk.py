"""An executor on a disk that fills up: offline in good order with its reason, and back by itself."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from executors.lora.default_base import default_base_directory
from infra.topics import ensure_topics
from schemas.fleet import CommandRefused, NodeOffline, NodeOnline, RunFailed, RunProgressed, RunStarted
from schemas.kafka_connection import KafkaConnection
from schemas.topics import topics
from tests.support.executor_processes import Executors, executors
from tests.support.executors import TINY_RECIPE, order, write_dataset
from tests.support.small_disk import SmallDisk, small_disk

MIB = 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "state", mib=160) as disk:
        yield disk


@pytest.fixture
def fleet(
    kafka: str, topic_prefix: str, tmp_path: Path, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Executors]:
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "datasets").mkdir()
    write_dataset(tmp_path / "datasets" / "pairs.jsonl")
    connection = KafkaConnection(bootstrap_servers=kafka)
    ensure_topics(connection, topics(topic_prefix, partitions=1, command_partitions=1))
    base = default_base_directory(TINY_RECIPE)
    with executors(connection, topic_prefix, tmp_path, base) as fleet:
        yield fleet


def test_node_is_offline_while_disk_is_full(fleet: Executors, disk: SmallDisk) -> None:
    fleet.start("n1")
    fleet.await_event(NodeOnline, node="n1")
    fleet.assign("n1", order("long", 10**6, work=10**6))
    fleet.await_that(lambda: fleet.checkpoints("long"))

    disk.fill(leave_bytes=0)

    left = fleet.await_event(NodeOffline, node="n1")
    assert "state root" in left.reason
    assert f"node offline node=n1 reason={left.reason}" in fleet.log("n1")
    offline_at = len(fleet.events)
    missed = fleet.assign("n1", order("missed", 8))
    refused = fleet.await_event(CommandRefused, command_id=missed.id)
    assert (refused.reason, [run.job_id for run in refused.runs]) == ("no_room", ["missed"])
    fleet.listen(2)
    assert {type(each.event) for each in fleet.events[offline_at:]} == {CommandRefused}, "no heartbeat"
    assert fleet.events_of(RunFailed) == []

    disk.clear()

    fleet.await_that(lambda: len(fleet.events_of(NodeOnline, node="n1")) == 2)
    fleet.assign("n1", order("next", 8))
    fleet.await_event(RunProgressed, job_id="next", complete=True)
    assert fleet.events_of(RunStarted, job_id="missed") == []
    assert fleet.stop("n1", signal.SIGTERM) == 0


@pytest.mark.drill
def test_node_starting_on_full_disk_waits_with_reason(fleet: Executors, disk: SmallDisk) -> None:
    disk.fill(leave_bytes=10 * MIB)

    fleet.start("n1")

    assert "has 10.0 MiB free and needs 64.0 MiB" in fleet.await_event(NodeOffline, node="n1").reason
    assert fleet.events_of(NodeOnline) == []
    disk.clear()
    fleet.await_event(NodeOnline, node="n1")


@pytest.mark.drill
def test_a_node_can_be_stopped_while_it_waits(fleet: Executors, disk: SmallDisk) -> None:
    fleet.start("n1")
    fleet.await_event(NodeOnline, node="n1")
    disk.fill(leave_bytes=0)
    fleet.await_event(NodeOffline, node="n1")

    assert fleet.stop("n1", signal.SIGTERM) == 0

    assert "journal not written node=n1" in fleet.log("n1")
