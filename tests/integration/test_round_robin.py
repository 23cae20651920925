"""A policy that is installed separately works with all of the product's commands."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.integration.deployment import ROOT, Up, until
from tests.round_robin import install

TIMEOUT_S = 120.0
CELLS = {
    "cells": [
        {
            "cell": "counts",
            "slot_s": 2.0,
            "node_timeout_s": 20.0,
            "tariffs": [{"name": "flat", "micros_per_kwh": [0] * 24}],
            "zones": [
                {
                    "id": "turns",
                    "base_model": "none",
                    "base_model_memory_gib": 1.0,
                    "gpu_types": [{"name": "any", "samples_per_s": 1.0, "memory_gib": 8.0}],
                    "nodes": [{"id": f"n{number}", "gpu_type": "any", "tariff": "flat"} for number in (1, 2)],
                    "policy": {"kind": "round_robin", "turn_samples": 50, "sort_every_s": 1.0},
                }
            ],
        }
    ]
}
JOBS = [
    {
        "job_id": f"j{number}",
        "user": "ann",
        "zone": "turns",
        "workload": {"kind": "count", "goal": 400 * (number + 1)},
        "terms": {"kind": "queue"},
    }
    for number in range(5)
]
Millrace = Callable[..., str]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    path = os.pathsep.join([str(install(tmp_path / "site")), os.environ.get("PYTHONPATH", "")])
    inherited = {name: value for name, value in os.environ.items() if name != "MILLRACE_BOOTSTRAP_SERVERS"}
    return {**inherited, "PYTHONPATH": path, "MILLRACE_DATA_DIR": str(tmp_path / "data")}


@pytest.fixture
def millrace(environment: dict[str, str]) -> Millrace:
    def call(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "infra.cli", *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=TIMEOUT_S,
        ).stdout

    return call


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    path = tmp_path / "cells.yaml"
    path.write_text(yaml.safe_dump(CELLS, default_flow_style=None))
    return path


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump(JOBS))
    return path


@pytest.fixture
def up(environment: dict[str, str], cells: Path, tmp_path: Path) -> Iterator[None]:
    up = Up(tmp_path / "up.log", str(cells), environment=environment)
    try:
        up.await_ready()
        assert "solver starts" in up.output, "the policy asks solvers"
        yield
    finally:
        assert up.interrupt() == 130, up.output


@pytest.mark.drill
@pytest.mark.usefixtures("up")
def test_jobs_of_installed_policy_complete_and_verify(millrace: Millrace, jobs: Path, tmp_path: Path) -> None:
    decided = [
        json.loads(line) for line in millrace("submit", str(jobs), "--cell", "counts", "--json").splitlines()
    ]
    assert [job["state"] for job in decided] == ["admitted"] * len(JOBS)

    def explained() -> str:
        return millrace("explain", "j4")

    until(lambda: "completed on n" in explained(), "the longest job is done", TIMEOUT_S)
    assert "ann queue" in explained()
    seen = millrace("watch", "--once")
    assert "2000/2000" in seen
    out = tmp_path / "log"
    assert json.loads(millrace("replay", "--strict", "--export", str(out), "--json"))["ok"]
    assert (out / "decisions.jsonl").read_bytes().count(b'"type":"millrace.job.completed.v1"') == len(JOBS)
    assert b'"type":"millrace.solve.requested.v1"' in (out / "decisions.jsonl").read_bytes()
    assert b'"type":"millrace.solve.finished.v1"' in (out / "ledger.jsonl").read_bytes(), "a solver answered"


@pytest.mark.slow
def test_the_policy_is_simulated_like_any_other(
    millrace: Millrace, cells: Path, jobs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "log"
    found = json.loads(
        millrace(
            "simulate",
            "--cells",
            str(cells),
            "--job-file",
            str(jobs),
            "--solve-s",
            "3",
            "--out",
            str(out),
            "--json",
        )
    )
    assert (found["jobs"], found["admitted"], found["solves"] > 0) == (len(JOBS), len(JOBS), True)
    assert json.loads(millrace("replay", "--from", str(out / "ledger.jsonl"), "--json"))["ok"]
