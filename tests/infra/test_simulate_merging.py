"""`millrace simulate` of fine-tuning jobs that are merged, from end to end."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from infra.cli import run
from infra.commands.options import CELLS_DIRECTORY

CELLS = ["simulate", "--cells", str(CELLS_DIRECTORY / "merging.yaml")]
SMALL = [*CELLS, "--jobs", "24", "--span-slots", "20", "--seed", "2", "--draw", "datasets=4"]
SMALL += ["--nodes", "finetune=2", "--set", "finetune.policy.merges=expected"]


def simulated(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run([*options, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small simulation's files."""
    folder = tmp_path_factory.mktemp("out")
    assert run([*SMALL, "--out", str(folder)]) == 0
    return folder


def test_each_job_is_a_line_of_a_file(folder: Path) -> None:
    rows = list(csv.DictReader((folder / "jobs.csv").open()))
    assert len(rows) == len({row["job_id"] for row in rows}) == 24
    for row in rows:
        assert (row["zone"], row["state"]) == ("finetune", "completed")
        assert float(row["jct_s"]) == float(row["ended_s"]) - float(row["submitted_s"])
        assert float(row["finish_time_fairness"]) > 0
        assert (row["partner"] == "") == (row["mode"] == "normal")
        if row["sharing"] == "False":
            assert row["mode"] == "normal", "a job that does not share is never merged"


def test_each_merged_job_is_a_line_of_another(folder: Path) -> None:
    jobs = {row["job_id"]: row for row in csv.DictReader((folder / "jobs.csv").open())}
    merges = list(csv.DictReader((folder / "merges.csv").open()))
    assert merges
    for row in merges:
        assert row["dataset"] == jobs[row["job_id"]]["dataset"]
        assert row["reason"] in ("finished", "undone", "ended_early")
        assert jobs[row["job_id"]]["sharing"] == jobs[row["partner"]]["sharing"] == "True"


def test_the_log_is_replayed(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert run(["replay", "--from", str(folder / "ledger.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_transfers_are_drawn_from_ledger(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
) -> None:
    capsys.readouterr()
    given = ["transfers", "finetune", "--from", str(folder / "ledger.jsonl"), "--json"]
    assert run([*given, "--out", str(tmp_path / "map.png")]) == 0
    pairs = json.loads(capsys.readouterr().out)["transfers"]
    merges = list(csv.DictReader((folder / "merges.csv").open()))
    assert sum(pair["merges"] for pair in pairs) == len(merges)
    assert {pair["donor"] for pair in pairs} <= {f"drawn/task-{n:02d}.jsonl" for n in range(1, 5)}
    assert (tmp_path / "map.png").stat().st_size > 1_000


def test_history_of_job_is_explained(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    merge = next(csv.DictReader((folder / "merges.csv").open()))
    given = ["explain", merge["job_id"], "--from", str(folder / "ledger.jsonl")]
    assert run([*given, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    types = [chapter["type"] for chapter in told["chapters"]]
    assert (types[0], told["state"]) == ("millrace.job.submitted.v1", "completed")
    assert "millrace.merge.evaluated.v1" in types
    assert run(given) == 0
    assert merge["partner"] in capsys.readouterr().out
    assert run([*given, "--days", "1"]) == 1
    assert "--days reads Kafka" in capsys.readouterr().err
    given[1] = "nobody"
    assert run(given) == 1
    assert "the log has no job nobody" in capsys.readouterr().err


def test_people_read_the_figures_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*CELLS, "--jobs", "3", "--span-slots", "1"]) == 0
    shown = capsys.readouterr().out
    for words in ("Zone finetune", "makespan", "jobs merged: temporal, spatial", "worth of merges"):
        assert words in shown


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["srtf", "tiresias", "optimus", "pollux", "themis", "titan"])
def test_rival_scheme_completes_jobs_without_merges(capsys: pytest.CaptureFixture[str], scheme: str) -> None:
    options = [*CELLS, "--jobs", "6", "--span-slots", "5", "--nodes", "finetune=2"]
    found = simulated(capsys, *options, "--set", f"finetune.policy.scheme={scheme}")
    figures = found["zones"]["finetune"]
    assert (found["completed"], figures["completed"]) == (6, 6)
    assert (figures["temporal_share"], figures["spatial_share"], figures["saved_s"]) == (0.0, 0.0, 0.0)
    assert figures["fairness"]["worst"] > 0


def test_pipelines_run_on_four_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    options = [*CELLS, "--jobs", "4", "--span-slots", "5", "--draw", "pipeline_share=1"]
    found = simulated(capsys, *options)
    assert found["completed"] == 4
    assert found["zones"]["finetune"]["temporal_share"] == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--draw", "tasks=3"], "drawing jobs for policy merging: tasks: "),
        (["--draw", "sharing_share=2"], "sharing_share: "),
        (["--set", "finetune.policy.scheme=best"], "the changed cell is invalid"),
        (["--set", "finetune.policy.modes=[sideways]"], "the changed cell is invalid"),
    ],
)
def test_what_cannot_be_is_one_line(
    capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert run([*CELLS, *options]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert (error[:10], error.count("\n")) == ("millrace: ", 1)
