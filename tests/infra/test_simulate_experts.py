"""`millrace simulate` of mixture-of-experts models, from end to end."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from infra.cli import run
from infra.commands.options import CELLS_DIRECTORY

SMALL = ["simulate", "--cells", str(CELLS_DIRECTORY / "experts.yaml"), "--jobs", "8", "--seed", "2"]
SMALL += ["--draw", "serving_share=0.8"]


def simulated(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run([*SMALL, *options, "--json"]) == 0
    (zone,) = json.loads(capsys.readouterr().out)["zones"].values()
    return dict(zone)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that a small simulation writes."""
    folder = tmp_path_factory.mktemp("out")
    assert run([*SMALL, "--out", str(folder)]) == 0
    return folder


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / name).open()))


def test_jobs_and_placements_are_lines_of_files(folder: Path) -> None:
    jobs = {row["job_id"]: row for row in rows(folder, "jobs.csv")}
    assert len(jobs) == 8
    assert {row["state"] for row in jobs.values()} == {"completed"}
    placements = rows(folder, "placements.csv")
    assert {row["reason"] for row in placements} == {"initial", "popularity_shifted"}
    assert {jobs[row["job_id"]]["kind"] for row in placements} == {"moe-serve"}
    followed = [row for row in placements if row["reason"] == "popularity_shifted"]
    assert all(float(row["load"]) < float(row["load_before"]) for row in followed)


@pytest.mark.slow
def test_the_log_is_replayed_with_every_placement(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    capsys.readouterr()
    assert run(["replay", "--from", str(folder / "ledger.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


@pytest.mark.long
def test_services_are_faster_where_placements_follow_popularity(capsys: pytest.CaptureFixture[str]) -> None:
    following = simulated(capsys)
    standing = simulated(capsys, "--set", "moe.policy.least_gain=0.99")
    assert following["placements"]["popularity_shifted"] > 0
    assert standing["placements"]["popularity_shifted"] == 0
    assert following["batch_s"] < standing["batch_s"]


def test_history_of_service_is_explained(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    placed = next(row for row in rows(folder, "placements.csv") if row["reason"] == "popularity_shifted")
    capsys.readouterr()
    assert run(["explain", placed["job_id"], "--from", str(folder / "ledger.jsonl")]) == 0
    told = capsys.readouterr().out
    for part in (
        "queues it, without a bid or a deadline",
        "started with",
        "has profiled it",
        "its experts are placed by what its profile has counted: placement 1",
        "its placement follows the tokens, which go to other experts than before: placement 2",
        "gets placement 2",
    ):
        assert part in told, part


SERVICE = """
- job_id: {user}
  user: {user}
  zone: moe
  at_s: 0
  terms: {{kind: experts}}
  workload:
    kind: moe-serve
    model: m
    requests: {{dataset: {{path: p.jsonl, samples: 1000}}, most: 400000}}
    ranks: 16
    most_experts_per_device: 2
"""
TRAINING = """
- job_id: trained
  user: cid
  zone: moe
  at_s: 600
  terms: {kind: experts}
  workload:
    kind: moe-train
    model: m
    work_samples: 1000000
    dataset: {path: d.jsonl, samples: 1000}
    ranks: 16
"""


@pytest.mark.long
def test_services_are_preempted_for_waiting_job(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text("".join([*(SERVICE.format(user=user) for user in ("ann", "ben")), TRAINING]))
    waited_s = {}
    for patience_s in (1_800.0, 1e7):
        out = tmp_path / f"{patience_s:.0f}"
        options = ["--job-file", str(jobs), "--out", str(out)]
        for setting in (f"patience_s={patience_s}", "report_interval_s=60"):
            options += ["--set", f"moe.policy.{setting}"]
        assert run(["simulate", "--cells", str(CELLS_DIRECTORY / "experts.yaml"), *options]) == 0
        lines = {row["job_id"]: row for row in rows(out, "jobs.csv")}
        assert {row["state"] for row in lines.values()} == {"completed"}
        trained = lines["trained"]
        waited_s[patience_s] = float(trained["started_s"]) - float(trained["submitted_s"])
        assert all(
            (int(row["gave_way"]) > 0) == (patience_s < 1e7) for row in lines.values() if row != trained
        )
    assert waited_s[1_800.0] <= 2 * 3 * 1_800.0 < waited_s[1e7]
