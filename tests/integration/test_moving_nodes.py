"""A node joins a running cell, serves, is lent to another zone, comes back and retires, with its jobs."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.demo.data import write_datasets
from infra.deployment.cells import present_cells
from infra.deployment.deployment import Deployment, DeploymentSpec
from infra.deployment.deployment_folders import Folders
from infra.deployment.executors import served_nodes
from infra.kafka.local import LocalKafka
from infra.log.target import Target
from schemas.auction.evidence import JobReplanned
from schemas.base import Outcome
from schemas.codec import decode_decision
from schemas.decisions import (
    EventIgnored,
    JobCompleted,
    JobOutcome,
    JobRefunded,
    NodeMoved,
    NodeStatusChanged,
)
from schemas.kafka_connection import KafkaConnection
from schemas.lora_commands import SlotAssigned
from schemas.topics import DECISIONS, FLEET
from streams.kafka.reader import KafkaReader
from streams.replay.sources import verify_kafka
from tests.integration.deployment import DEMO_CELLS, ROOT, demo_bid, until

pytestmark = pytest.mark.timeout(400)

READY_S = 120.0
CELL, FRESH = "demo", "node-fresh"
ZONE, NODE = "tiny", "node-a40"
BORROWER, ITS_NODE = "borrower", "node-borrower"

Millrace = Callable[..., list[dict[str, Any]]]


def cells() -> dict[str, Any]:
    """The demo's cell with a long horizon, and its nodes in a zone each."""
    document = yaml.safe_load(DEMO_CELLS.read_text())
    (zone,) = document["cells"][0]["zones"]
    zone["horizon_slots"] = 60
    a40 = next(node for node in zone["nodes"] if node["gpu_type"] == "A40")
    zone["nodes"] = [{**a40, "id": NODE}]
    borrower = {**deepcopy(zone), "id": BORROWER, "nodes": [{**a40, "id": ITS_NODE}]}
    document["cells"][0]["zones"] = [zone, borrower]
    return document


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    root = tmp_path_factory.mktemp("moving")
    folders = Folders(root)
    folders.create()
    (root / "cells.yaml").write_text(yaml.safe_dump(cells()))
    list(write_datasets(folders.datasets, seed=1))
    with LocalKafka(root / "broker") as broker:
        target = Target(KafkaConnection(bootstrap_servers=broker.bootstrap_servers), "millrace")
        deployment = Deployment(DeploymentSpec(root / "cells.yaml", folders, target), lambda _line: None)
        with deployment.running():

            def run() -> bool:
                deployment.keep_running()
                return all(service.pid for service in deployment.executors.values())

            until(run, "the executors run", READY_S)
            yield deployment


@pytest.fixture(scope="module")
def millrace(deployment: Deployment) -> Millrace:
    """The command line, and what it prints in JSON."""
    address = deployment.spec.target.kafka.bootstrap_servers

    def call(*arguments: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-m", "infra.cli", *arguments, "--json"],
            cwd=ROOT,
            env={**os.environ, "MILLRACE_BOOTSTRAP_SERVERS": address},
            capture_output=True,
            text=True,
            timeout=READY_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return call


@contextmanager
def executor(deployment: Deployment, node: str) -> Iterator[None]:
    """Start an executor besides a running deployment, as an operator does, with no setting but the node."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MILLRACE_") or name == "MILLRACE_CACHE_DIR"
    }
    folders = deployment.spec.folders
    process = subprocess.Popen(
        [sys.executable, "-m", "infra.cli", "executor", "--node", node],
        cwd=ROOT,
        env={**ours, "MILLRACE_DATA_DIR": str(folders.root)},
    )
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(READY_S) == 0
    assert (folders.executors / CELL / "nodes" / node / "journal.json").exists(), "in the others' folders"


def decided(deployment: Deployment) -> list[Outcome]:
    """Everything that the cell has decided so far."""
    target = deployment.spec.target
    with KafkaReader(target.kafka) as reader:
        records = list(reader.read(reader.slice(target.topic(DECISIONS))))
    return [decode_decision(record.value or b"").outcome for record in records]


def status(deployment: Deployment, node: str) -> tuple[str | None, str | None]:
    """Return zone and status of a node, from the decisions."""
    zone = state = None
    for outcome in decided(deployment):
        match outcome:
            case NodeMoved() if outcome.node == node:
                zone = outcome.to_zone
            case NodeStatusChanged() if outcome.node == node:
                state = outcome.status
    return zone, state


def submitted(millrace: Millrace, tmp_path: Path, job_id: str, zone: str, work_samples: int) -> str:
    """Bid for a job, which is admitted."""
    file = tmp_path / f"{job_id}.yaml"
    bid = demo_bid(job_id, 900_000, work_samples=work_samples, dataset={"path": "text.jsonl", "samples": 64})
    file.write_text(yaml.safe_dump([{**bid, "zone": zone, "terms": {**bid["terms"], "deadline_in_s": 180}}]))
    (answer,) = millrace("submit", str(file))
    assert answer["state"] == "admitted", answer
    return job_id


def completed_on(deployment: Deployment, job_id: str) -> str:
    """The node on which a job ends, which is waited for."""

    def end() -> JobOutcome | None:
        ends = (one for one in decided(deployment) if isinstance(one, JobCompleted | JobRefunded))
        return next((one for one in ends if one.job_id == job_id), None)

    ended = until(end, f"job {job_id} is over", READY_S)
    assert isinstance(ended, JobCompleted), ended
    return ended.node


@pytest.mark.drill
def test_node_joins_is_lent_returns_and_retires(
    deployment: Deployment, millrace: Millrace, tmp_path: Path
) -> None:
    def nodes(order: str, node: str, *options: str) -> dict[str, Any]:
        (answer,) = millrace("nodes", order, node, "--cell", CELL, *options)
        return answer

    joined = nodes("register", FRESH, "--zone", ZONE, "--gpu-type", "A40", "--tariff", "south")
    assert (joined["type"], joined["to_zone"]) == ("millrace.node.moved.v1", ZONE)
    assert status(deployment, FRESH) == (ZONE, "down"), "nobody has heard it yet"
    with executor(deployment, FRESH):
        until(lambda: status(deployment, FRESH) == (ZONE, "up"), "the new node is up", READY_S)
        nodes("cordon", NODE)
        serves = submitted(millrace, tmp_path, "serves", ZONE, 96)
        assert completed_on(deployment, serves) == FRESH

        nodes("cordon", ITS_NODE)
        assert nodes("lend", FRESH, "--zone", BORROWER)["reason"] == "lent"
        until(lambda: status(deployment, FRESH)[0] == BORROWER, "the loan")
        on_loan = submitted(millrace, tmp_path, "on-loan", BORROWER, 96)
        assert completed_on(deployment, on_loan) == FRESH

        assert nodes("return", FRESH)["reason"] == "returned"
        until(lambda: status(deployment, FRESH)[0] == ZONE, "the return")
        moved = submitted(millrace, tmp_path, "moved", ZONE, 480)
        began = time.time()
        until(lambda: FRESH in trains_since(deployment, began), "the job trains on the node")
        nodes("uncordon", NODE)
        assert nodes("retire", FRESH)["status"] == "leaving"
        until(lambda: status(deployment, FRESH)[0] is None, "the node has left")
    replanned = [one for one in decided(deployment) if isinstance(one, JobReplanned)]
    assert [(one.job_id, one.reason) for one in replanned][:1] == [(moved, "node_leaving")]
    assert completed_on(deployment, moved) == NODE
    assert [one for one in decided(deployment) if isinstance(one, JobRefunded | EventIgnored)] == []
    assert verify_kafka(deployment.spec.target.kafka, "millrace").ok


@pytest.mark.drill
def test_executor_of_departed_node_stays_stopped(deployment: Deployment, millrace: Millrace) -> None:
    registration = ("--zone", ZONE, "--gpu-type", "A40", "--tariff", "south")
    for node in (FRESH, "node-elsewhere"):
        millrace("nodes", "register", node, "--cell", CELL, *registration)
    millrace("nodes", "retire", NODE, "--cell", CELL)

    def stopped() -> bool:
        deployment.keep_running()
        return (CELL, NODE) not in deployment.executors

    until(stopped, "the executor of the retired node is stopped")
    assert list(deployment.executors) == [(CELL, ITS_NODE)]
    target, folders = deployment.spec.target, deployment.spec.folders
    heartbeat_s = deployment.cells[0].node_timeout_s / 4
    time.sleep(heartbeat_s)  # its last report, that it goes offline, may still be refused
    refused = fleet_dead_letters(target)
    time.sleep(2 * heartbeat_s)
    assert fleet_dead_letters(target) == refused, "nobody sends heartbeats for it"
    assert served_nodes(present_cells(target)[CELL], folders) == [ITS_NODE, FRESH], (
        "what a restart would run: the node that was served from here joined again, the other never was"
    )


def fleet_dead_letters(target: Target) -> int:
    """Return the number of refused reports of nodes."""
    with KafkaReader(target.kafka) as reader:
        return len(list(reader.read(reader.slice(target.dead_letters(FLEET)))))


def trains_since(deployment: Deployment, time_s: float) -> set[str]:
    """Nodes that have been given something to train in a slot that began since."""
    orders = [one for one in decided(deployment) if isinstance(one, SlotAssigned)]
    return {one.node for one in orders if one.slot_start_s >= time_s}


@pytest.mark.drill
def test_running_zone_is_reconfigured(deployment: Deployment, millrace: Millrace, tmp_path: Path) -> None:
    document = cells()
    document["cells"][0]["zones"][1]["horizon_slots"] = 80
    file = tmp_path / "longer.yaml"
    file.write_text(yaml.safe_dump(document))
    (answer,) = millrace("zone", str(file), "--cell", CELL, "--zone", BORROWER)
    assert answer == {"type": "millrace.zone.accepted.v1", "zone": BORROWER, "reason": "changed"}
    assert verify_kafka(deployment.spec.target.kafka, "millrace").ok
