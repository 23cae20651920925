"""Two workers on real Kafka: cells move between them, and events reach those that the other one holds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.kafka.records import key_partition
from tests.integration.deployment import Deployment, until
from tests.streams import events

PARTITIONS = 2
NEAR, FAR = "north", "south"
"""Cells of different partitions."""
FLOOD_BIDS = 2_000


@pytest.fixture
def deployment(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(kafka, topic_prefix, tmp_path, [NEAR, FAR], partitions=PARTITIONS)
    yield deployment
    deployment.stop_workers()


@pytest.mark.drill
def test_cells_move_when_their_worker_dies(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    cells = [f"cell-{number}" for number in range(6)]
    deployment = Deployment(kafka, topic_prefix, tmp_path, cells, partitions=4)
    try:
        first = deployment.start_worker()
        deployment.configure(*cells)
        second = deployment.start_worker()
        deployment.await_members(2)
        for cell in cells:
            deployment.send(events.stream(20, cell)[1:])
        deployment.proven()

        first.kill()
        for cell in cells:
            deployment.send(events.stream(30, cell)[20:])

        assert deployment.proven().cells == len(cells)
        assert second.running, second.output
        until(lambda: deployment.committed_lag() == 0, "everything acknowledged")
    finally:
        deployment.stop_workers()


@pytest.mark.slow
def test_bids_in_partition_of_other_worker_are_decided(
    deployment: Deployment,
) -> None:
    workers = [deployment.start_worker()]
    deployment.configure(NEAR, FAR)
    workers.append(deployment.start_worker())
    deployment.await_members(2)
    astray = [events.bid(number, FAR) for number in range(600)]
    deployment.send(astray, "astray", partition=key_partition(NEAR, PARTITIONS))
    own = set(deployment.send([events.bid(number, NEAR) for number in range(200)], "own"))

    assert deployment.proven().duplicates == 0
    entered_ms = deployment.entered_ms()
    astray_ms = sorted(at_ms for id, at_ms in entered_ms.items() if id.startswith("astray"))
    own_ms = sorted(entered_ms[id] for id in own)
    assert astray_ms[-1] - astray_ms[0] > 5_500, "a hundred each second, which leaves the other worker room"
    assert own_ms[0] < astray_ms[len(astray) // 2], "those sent later to the right partition overtake"
    assert all(worker.running for worker in workers)


@pytest.mark.drill
def test_worker_killed_during_flood_leaves_nothing_undecided(deployment: Deployment) -> None:
    workers = [deployment.start_worker()]
    deployment.configure(NEAR, FAR)
    workers.append(deployment.start_worker())
    deployment.await_members(2)
    for cell in (NEAR, FAR):
        deployment.send([events.bid(number, cell) for number in range(FLOOD_BIDS)], f"{cell}-")
    until(lambda: deployment.count("ledger") > FLOOD_BIDS / 4, "a part of the flood in the ledger")
    assert deployment.count("ledger") < 2 * FLOOD_BIDS

    workers[0].kill()

    assert deployment.proven(120.0).cells == 2
    assert workers[1].running, workers[1].output
