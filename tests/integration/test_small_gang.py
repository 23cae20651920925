"""A gang policy outside the product trains on two nodes, through Kafka and through kills."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from infra.deployment.deployment_folders import Folders
from infra.log.target import Target
from schemas.decisions import JobCompleted
from schemas.fleet import RunProgressed, RunStarted
from schemas.kafka_connection import KafkaConnection
from schemas.topics import DECISIONS, LEDGER
from tests.integration.deployment import ROOT, Up, until
from tests.integration.watched_deployment import READY_S, Records
from tests.small_gang import install
from tests.small_gang.kind import LineAssigned, LineChanged

pytestmark = pytest.mark.timeout(600)

CELL, ZONE, USER = "lines", "gangs", "ann"
NODES = ("n1", "n2")
WORK_SAMPLES = 6_000
CELLS = {
    "cells": [
        {
            "cell": CELL,
            "slot_s": 2.0,
            "node_timeout_s": 20.0,
            "tariffs": [{"name": "flat", "micros_per_kwh": [0] * 24}],
            "zones": [
                {
                    "id": ZONE,
                    "base_model": "none",
                    "base_model_memory_gib": 1.0,
                    "gpu_types": [{"name": "any", "samples_per_s": 1.0, "memory_gib": 8.0}],
                    "nodes": [{"id": node, "gpu_type": "any", "tariff": "flat"} for node in NODES],
                    "policy": {"kind": "small_gang"},
                }
            ],
        }
    ]
}


@dataclass
class Fleet:
    """A deployment with the policy, and its log. This process reads it as JSON: it has no such policy."""

    up: Up
    folders: Folders
    environment: dict[str, str]
    decisions: Records
    ledger: Records
    _decided: list[dict[str, Any]] = field(default_factory=list, init=False)
    _events: list[tuple[str, dict[str, Any]]] = field(default_factory=list, init=False)

    def millrace(self, *arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "infra.cli", *arguments],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=READY_S,
        ).stdout

    def submit(self, job_id: str, processes: int, step_s: float) -> None:
        workload = {"kind": "line", "processes": processes, "work_samples": WORK_SAMPLES, "step_s": step_s}
        terms = {"kind": "first_come"}
        job = {"job_id": job_id, "user": USER, "zone": ZONE, "workload": workload, "terms": terms}
        path = self.folders.root / f"{job_id}.yaml"
        path.write_text(yaml.safe_dump([job]))
        (decided,) = self.millrace("submit", str(path), "--cell", CELL, "--json").splitlines()
        assert json.loads(decided)["state"] == "admitted"

    def decided(self, type: str, job_id: str) -> list[dict[str, Any]]:
        self._decided += [json.loads(record.value or b"") for record in self.decisions.new()]
        data = [decision["data"] for decision in self._decided if decision["type"] == type]
        return [each for each in data if each["job_id"] == job_id]

    def events(self, type: str, job_id: str) -> list[dict[str, Any]]:
        for record in self.ledger.new():
            ce_type = dict(record.headers)["ce_type"] or b""
            self._events.append((ce_type.decode(), json.loads(record.value or b"")))
        data = [event for each, event in self._events if each == type]
        return [each for each in data if each.get("job_id") == job_id]

    def await_samples(self, job_id: str, count: int) -> None:
        def has_progressed() -> bool:
            return any(each["samples_done"] >= count for each in self.events(RunProgressed.TYPE, job_id))

        until(has_progressed, f"{job_id} has {count} samples", READY_S)

    def await_completed(self, job_id: str) -> None:
        until(lambda: self.decided(JobCompleted.TYPE, job_id), f"{job_id} is completed", READY_S)
        (completed,) = self.decided(JobCompleted.TYPE, job_id)
        assert completed["samples_done"] == WORK_SAMPLES

    def weights(self, job_id: str) -> list[float]:
        path = self.folders.adapters / CELL / USER / job_id / "line.json"
        weights: list[float] = json.loads(path.read_text())
        return weights

    def processes_of(self, node: str) -> list[psutil.Process]:
        """The service of a node and its ranks, which print to one log, by age."""
        log = self.folders.logs / f"executor-{CELL}-{node}.log"
        found = []
        for process in self.up.children():
            with suppress(FileNotFoundError, PermissionError):  # it has ended
                if Path(f"/proc/{process.pid}/fd/2").readlink() == log:
                    found.append(process)
        return sorted(found, key=lambda process: process.create_time())

    def assert_proven(self) -> None:
        verdict = json.loads(self.millrace("replay", "--strict", "--json"))
        assert verdict["ok"], verdict


@pytest.fixture(scope="module")
def fleet(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    root = tmp_path_factory.mktemp("small-gang").resolve()
    folders, prefix = Folders(root / "data"), f"test-{root.name}-{os.getpid()}"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(install(root / "site")), os.environ.get("PYTHONPATH", "")]),
        "MILLRACE_BOOTSTRAP_SERVERS": kafka,
        "MILLRACE_TOPIC_PREFIX": prefix,
        "MILLRACE_DATA_DIR": str(folders.root),
        "MILLRACE_CHECKPOINT_S": "0.5",
    }
    cells = root / "cells.yaml"
    cells.write_text(yaml.safe_dump(CELLS))
    up = Up(root / "up.log", str(cells), environment=environment)
    try:
        up.await_ready()
        target = Target(KafkaConnection(bootstrap_servers=kafka), prefix)
        decisions, ledger = Records(target, DECISIONS), Records(target, LEDGER)
        yield Fleet(up, folders, environment, decisions, ledger)
        decisions.close()
        ledger.close()
    finally:
        assert up.interrupt() == 130, up.output


@pytest.fixture(scope="module")
def weights(fleet: Fleet) -> list[float]:
    """Weights that one process computes."""
    fleet.submit("alone", processes=1, step_s=0.0)
    fleet.await_completed("alone")
    return fleet.weights("alone")


@pytest.mark.slow
def test_a_gang_of_two_nodes_completes_its_job(fleet: Fleet, weights: list[float]) -> None:
    fleet.submit("pair", processes=2, step_s=0.0)
    fleet.await_completed("pair")
    assigned = fleet.decided(LineAssigned.TYPE, "pair")
    assert [(each["node"], each["generation"]) for each in assigned] == [("n1", 1), ("n2", 1)]
    assert {each["node"] for each in fleet.events(RunStarted.TYPE, "pair")} == {"n1", "n2"}
    assert fleet.weights("pair") == pytest.approx(weights, abs=1e-5)
    fleet.assert_proven()


@pytest.mark.parametrize(
    ("victim", "node"),
    [
        pytest.param("rank", "n2", marks=pytest.mark.slow),
        pytest.param("rank", "n1", marks=pytest.mark.drill),
        pytest.param("service", "n1", marks=pytest.mark.slow),
        pytest.param("service", "n2", marks=pytest.mark.drill),
    ],
)
def test_a_killed_process_costs_one_generation(
    fleet: Fleet, weights: list[float], victim: str, node: str
) -> None:
    job_id = f"{victim}-{node}"
    fleet.submit(job_id, processes=2, step_s=0.02)
    fleet.await_samples(job_id, WORK_SAMPLES // 10)
    service, rank = fleet.processes_of(node)
    (rank if victim == "rank" else service).kill()
    fleet.await_completed(job_id)
    changes = [(each["generation"], each["reason"]) for each in fleet.decided(LineChanged.TYPE, job_id)]
    assert changes[0] == (1, "started")
    # A service that restarts more slowly than the timeout of its node is lost first.
    assert changes[1] in ([(1, "run_failed")] if victim == "rank" else [(1, "run_failed"), (1, "node_lost")])
    assert changes[2] == (2, "resumed")
    resumed = [each for each in fleet.decided(LineAssigned.TYPE, job_id) if each["generation"] == 2]
    assert {each["node"] for each in resumed} == set(NODES)
    starts = [each for each in fleet.events(RunStarted.TYPE, job_id) if each["run_id"] == f"2/{job_id}"]
    assert all(0 < each["resume_samples"] < WORK_SAMPLES for each in resumed)
    assert all(start["samples_done"] >= resumed[0]["resume_samples"] for start in starts)
    assert fleet.weights(job_id) == pytest.approx(weights, abs=1e-5)
    fleet.assert_proven()
