"""A deployment that is installed from the wheel, and runs in a folder with files of everybody's names."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.integration.deployment import ROOT, UP_TIMEOUT_S, until
from tests.support.wheel import HostileFolder, install_wheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NODE = "train-0"
JOB = {
    "cell": "loans",
    "user": "ann",
    "job_id": "anywhere",
    "zone": "training",
    "terms": {"kind": "elastic"},
    "workload": {
        "kind": "elastic",
        "work_samples": 64,
        "model": "tiny-llama",
        "dataset": {"path": "lines.jsonl", "samples": 24},
        "samples_per_s": 100.0,
    },
}

BID = {
    "cell": "loans",
    "user": "ann",
    "job_id": "priced",
    "zone": "tiny",
    "terms": {"kind": "bid", "bid": 100, "deadline_in_s": 1_800},
    "workload": {
        "kind": "lora",
        "work_samples": 200,
        "dataset": {"path": "lines.jsonl", "samples": 24},
        "hyperparameters": {"rank": 8, "batch_size": 4, "sequence_length": 64},
    },
}

Start = Callable[..., Path]


def cells_file(path: Path) -> Path:
    """A zone that trains, one under a policy that asks solvers, and one that auctions."""
    (cell,), (home,) = (
        yaml.safe_load((ROOT / "infra" / "cells" / f"{name}.yaml").read_text())["cells"]
        for name in ("loans", "default")
    )
    training = cell["zones"][0]
    solving = {
        **training,
        "id": "solving",
        "nodes": [{**training["nodes"][0], "id": "solve-0"}],
        "policy": {"kind": "titan"},
    }
    path.write_text(json.dumps({"cells": [{**cell, "zones": [training, solving, *home["zones"]]}]}))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder of the deployment."""
    return tmp_path / "data"


@pytest.fixture
def hostile(tmp_path: Path, data: Path) -> HostileFolder:
    return HostileFolder(tmp_path / "hostile", MILLRACE_DATA_DIR=str(data))


@pytest.fixture
def millrace(tmp_path: Path) -> Path:
    return install_wheel(tmp_path)


@pytest.fixture
def start(hostile: HostileFolder, millrace: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts a command in the folder and returns its output's file when a line is there."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, until_it_prints: str) -> Path:
        output = tmp_path / f"{arguments[0]}.log"
        with output.open("wb") as file:
            command = [str(millrace), *arguments]
            process = subprocess.Popen(
                command, cwd=hostile.path, env=hostile.environment, stdout=file, stderr=file
            )
        started.append(process)

        def ready() -> bool:
            assert process.poll() is None, output.read_text()
            return until_it_prints in output.read_text()

        until(ready, f"{arguments[0]} says {until_it_prints!r}", UP_TIMEOUT_S)
        return output

    yield start
    for process in reversed(started):
        process.send_signal(signal.SIGINT)
        process.wait(UP_TIMEOUT_S)


def test_a_deployment_decides_solves_and_serves_a_node(start, hostile, millrace, data, tmp_path):
    cells = cells_file(tmp_path / "cells.yaml")
    up = start("up", str(cells), "--no-executors", until_it_prints="Ctrl-C stops")
    (tmp_path / "job.yaml").write_text(json.dumps([JOB, BID]))
    submitted = hostile.run(millrace, "submit", tmp_path / "job.yaml")
    assert "anywhere queued" in submitted.stdout, submitted.stderr
    assert "priced admitted" in submitted.stdout, submitted.stderr
    start("executor", "--node", NODE, until_it_prints="node online")
    until(lambda: "solver ready" in (data / "logs" / "solver.log").read_text(), "the solver is ready")
    verified = hostile.run(millrace, "replay")
    assert "every decision follows from the ledger" in verified.stdout + verified.stderr
    assert "died" not in up.read_text()
    assert hostile.imported == []


@pytest.mark.drill
def test_the_demo_forks_executors_that_train(hostile, millrace, data):
    played = subprocess.run(
        [str(millrace), "demo", "--scene", "market"],
        cwd=hostile.path,
        env=hostile.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert played.returncode == 0, played.stdout[-3_000:] + played.stderr
    assert "log: every decision follows from the ledger" in played.stdout
    assert list((data / "demo" / "adapters").rglob("adapter_model.safetensors"))
    assert hostile.imported == []
