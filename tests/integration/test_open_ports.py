"""A secured deployment that has trained leaves open to others no file, and no port but those that
docs/security.md lists.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from executors.lora.default_base import default_base_directory
from infra.cli import run
from infra.demo.data import write_datasets
from infra.deployment.deployment_folders import Folders
from infra.kafka.files import open_to_others
from infra.kafka.local import LocalKafka
from tests.integration.deployment import ROOT, Up, demo_bid, until
from tests.support.listening import listening

CELLS = ROOT / "infra" / "cells"
PAGE = ROOT / "docs" / "security.md"
TIMEOUT_S = 240.0
LISTENERS = {
    "kafka.Kafka": {"broker: clients", "broker: internal", "broker: controller"},
    "fork_server": {"meeting of a generation", "Gloo and NCCL", "coordinator of expert ranks"},
}
"""By a part of the command line of the process that listens, the rows of the page that it may be."""


def listed_ports() -> dict[str, str]:
    """The page's table of ports: what listens, and on which address."""
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \| [^|]+ \|$", PAGE.read_text(), re.MULTILINE)
    return {what: address for what, address in rows if what in set().union(*LISTENERS.values())}


def cells_file(path: Path) -> Path:
    """One cell: a node of the auction and one of an elastic zone."""
    (auction,), (elastic,) = (
        yaml.safe_load((CELLS / f"{name}.yaml").read_text())["cells"] for name in ("demo", "loans")
    )
    zones = [zone for zone in auction["zones"] if zone["id"] == "tiny"]
    zones[0]["nodes"] = zones[0]["nodes"][:1]
    training = elastic["zones"][0]
    training["nodes"][0]["tariff"] = zones[0]["nodes"][0]["tariff"]
    path.write_text(yaml.safe_dump({"cells": [{**auction, "zones": [*zones, training]}]}))
    return path


def elastic_job() -> dict[str, object]:
    return {
        "cell": "demo",
        "user": "ann",
        "job_id": "wide",
        "zone": "training",
        "workload": {
            "kind": "elastic",
            "work_samples": 400,
            "model": "tiny-llama",
            "dataset": {"path": "language.jsonl", "samples": 24},
            "hyperparameters": {"global_batch_size": 8, "micro_batch_size": 4, "sequence_length": 64},
            "samples_per_s": 100.0,
        },
        "terms": {"kind": "elastic"},
    }


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Up, Folders]]:
    """A secured deployment on folders that were open before, as an earlier deployment leaves them."""
    monkeypatch.delenv("MILLRACE_BOOTSTRAP_SERVERS", raising=False)
    folders = Folders(tmp_path / "data")
    folders.create()
    write_datasets(folders.datasets, seed=1)
    shutil.copytree(default_base_directory(), folders.models / "tiny-llama")
    assert list(open_to_others(folders.root))
    cells = cells_file(tmp_path / "cells.yaml")
    up = Up(tmp_path / "up.log", str(cells), "--secure", "--data-dir", str(folders.root))
    yield up, folders
    if up.process.poll() is None:
        up.interrupt()


@pytest.mark.drill
def test_secured_deployment_has_no_open_file_or_port(
    deployment: tuple[Up, Folders], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up, folders = deployment
    up.await_ready()
    logs = [folders.logs / f"executor-demo-{node}.log" for node in ("node-a100", "train-0")]
    # A bid must not lose its slots to executors that still load.
    until(
        lambda: all(log.exists() and "node online" in log.read_text() for log in logs),
        "both nodes are online",
        TIMEOUT_S,
    )
    monkeypatch.setenv("MILLRACE_DATA_DIR", str(folders.root))
    bid = demo_bid("small", 3)
    bid["workload"]["dataset"] = {"path": "language.jsonl", "samples": 24}
    (tmp_path / "jobs.yaml").write_text(json.dumps([bid, elastic_job()]))
    assert run(["submit", str(tmp_path / "jobs.yaml")]) == 0
    sockets: set[tuple[str, str, int]] = set()

    def trained() -> bool:
        sockets.update(listening([psutil.Process(up.process.pid), *up.children()]))
        return {path.parent.name for path in folders.adapters.rglob("*.safetensors")} >= {"small", "wide"}

    until(trained, f"both jobs are trained: {up.output}", TIMEOUT_S)

    assert [path for path in open_to_others(folders.root) if path.exists()] == []
    assert {address for _, address, _ in sockets} == {"127.0.0.1"}
    allowed = listed_ports()
    kinds = [{kind for kind in LISTENERS if kind in command} for command, _, _ in sockets]
    assert all(kinds), f"not on the page: {sockets}"
    assert {kind for found in kinds for kind in found} == LISTENERS.keys()
    assert set().union(*LISTENERS.values()) <= allowed.keys()
    assert len({port for command, _, port in sockets if "kafka.Kafka" in command}) == 3


def test_secured_broker_has_no_open_file_or_port(secured: LocalKafka) -> None:
    assert list(open_to_others(secured.log_path.parent)) == []
    assert secured.pid is not None
    found = listening([psutil.Process(secured.pid)])
    assert {address for _, address, _ in found} == {"127.0.0.1"}
    assert len(found) == 3
    assert LISTENERS["kafka.Kafka"] <= listed_ports().keys()
