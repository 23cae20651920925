"""`millrace simulate` of elastic jobs and of servers on loan, from end to end."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from infra.cli import run
from infra.commands.options import CELLS_DIRECTORY, cell_of
from infra.commands.simulate import EPOCH_S
from infra.simulation.edits import Edits, NodeCount
from infra.workloads.elastic.cluster import ElasticCluster, cluster_configuration
from schemas.cells import CellConfigured
from streams.policies.inference.kind import InferencePolicy

CELLS = CELLS_DIRECTORY / "elastic.yaml"
SMALL = ["simulate", "--load", "generated", "--jobs", "40", "--days", "0.25", "--seed", "2"]
MEASURED = ["jobs", "completed", "queuing", "jct", "preemptions", "preemption_ratio", "overdue_reclaims"]


def simulated(capsys, *options: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run([*options, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_cells_file_is_smaller_cluster_of_thesis():
    def without_names(cell: CellConfigured) -> dict[str, Any]:
        fields = cell.model_dump(exclude={"zones": {"__all__": {"nodes": {"__all__": {"id"}}}}})
        return dict(fields)

    cluster = ElasticCluster()
    sizes = NodeCount("training", cluster.training_servers), NodeCount("inference", cluster.inference_servers)
    file = Edits(counts=sizes).of(cell_of(CELLS, EPOCH_S, None))
    assert without_names(file) == without_names(cluster_configuration(cluster, InferencePolicy(), EPOCH_S))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return the folder that a small simulation writes."""
    folder = tmp_path_factory.mktemp("out")
    assert run([*SMALL, "--out", str(folder)]) == 0
    return folder


def test_drawn_jobs_run_to_end_and_are_measured(capsys):
    found = simulated(capsys, *SMALL)
    assert (found["cell"], found["jobs"], found["completed"]) == ("lyra", 40, 40)
    (zone,) = found["zones"]
    figures = found["zones"][zone]
    assert zone == "training"
    assert set(MEASURED) <= figures.keys()
    assert (figures["jobs"], figures["completed"], figures["overdue_reclaims"]) == (40, 40, 0)
    assert figures["queuing"]["p50_s"] <= figures["queuing"]["p99_s"]
    assert 0.4 < figures["overall_usage"] <= 1.0, "inference alone has as much"
    assert simulated(capsys, *SMALL) == found


def test_people_read_the_same_as_a_table(capsys):
    assert run(SMALL) == 0
    shown = capsys.readouterr().out
    assert "Zone training" in shown
    assert "GPU usage: servers on loan" in shown


def test_each_job_is_a_line_of_a_file(folder):
    rows = list(csv.DictReader((folder / "jobs.csv").open()))
    assert len(rows) == len({row["job_id"] for row in rows}) == 40
    for row in rows:
        assert (row["zone"], row["state"]) == ("training", "completed")
        assert float(row["jct_s"]) == float(row["ended_s"]) - float(row["submitted_s"])


def test_usage_is_a_line_by_the_hour(folder):
    rows = list(csv.DictReader((folder / "usage.csv").open()))
    starts_s = [float(row["start_s"]) - EPOCH_S for row in rows]
    assert starts_s == [3_600.0 * number for number in range(len(rows))]
    for row in rows:
        assert float(row["used_own_gpus"]) <= float(row["own_gpus"]) == 96
        assert float(row["used_loaned_gpus"]) <= float(row["loaned_gpus"]) + 1e-6
        assert float(row["loaned_gpus"]) + float(row["serving_gpus"]) <= float(row["inference_gpus"]) == 112


def test_the_log_is_replayed(capsys, folder):
    assert run(["replay", "--from", str(folder / "ledger.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_scheme_and_scenario_are_zone_settings(capsys):
    fifo = simulated(capsys, *SMALL, "--set", "training.policy.scheme=fifo")["zones"]["training"]
    ideal = simulated(capsys, *SMALL, "--set", "training.policy.scenario=ideal")["zones"]["training"]
    assert fifo["resizes"] == 0
    assert ideal["resizes"] > 0


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    """A job of four GPUs for an hour, every minute for two days."""
    rows = [f"j{n},u,{60 * n},3600,4,,,m" for n in range(2 * 1_440)]
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    path.write_text("\n".join(["job_id,user,submit_time_s,duration_s,gpus,gpu_type,status,model", *rows]))
    return path


def test_jobs_and_loads_are_read_from_files(capsys, tmp_path, trace):
    (tmp_path / "load.csv").write_text("time_s,load\n0,0.9\n3600,0.2\n7200,0.9\n")
    options = ["simulate", "--jobs", str(trace), "--load", str(tmp_path / "load.csv"), "--days", "0.2"]
    found = simulated(capsys, *options, "--out", str(tmp_path / "out"))
    assert found["completed"] == found["jobs"] == pytest.approx(0.78 * 96 * 0.2 * 24 / 4, abs=1)
    ledger = (tmp_path / "out/ledger.jsonl").read_text()
    assert '"load":0.9' in ledger
    assert '"millrace.capacity.offered.v1"' in ledger
    assert found["zones"]["training"]["reclaims"] > 0


def test_a_file_of_jobs_is_a_trace(capsys, trace):
    options = ["simulate", "--cells", str(CELLS), "--days", "0.05"]
    assert simulated(capsys, *options, "--jobs", str(trace)) == simulated(
        capsys, *options, "--trace", str(trace)
    )


def test_clusters_may_be_of_any_size(capsys):
    options = ["simulate", "--load", "generated", "--days", "0.02", "--jobs", "3", "--nodes", "training=2"]
    assert simulated(capsys, *options, "--nodes", "inference=3")["completed"] == 3


def test_loads_alone_are_measured_too(capsys):
    found = simulated(capsys, "simulate", "--load", "generated", "--jobs", "0", "--days", "0.25")
    assert found["jobs"] == 0
    assert found["zones"]["training"]["span_s"] == 0.25 * 86_400 - 300


BAD = {
    "jobs that are neither number nor file": (["--jobs", "many"], 2, "neither a number"),
    "too many jobs": (["--jobs", "1000001"], 2, "neither a number"),
    "two files of jobs": (["--jobs", "{trace}", "--trace", "{trace}"], 1, "--trace does not go with a file"),
    "two spans": (["--days", "1", "--span-slots", "3"], 1, "--span-slots does not go with --days"),
    "a load of a cell that does not lend": (
        ["--cells", str(CELLS_DIRECTORY / "fleet.yaml"), "--load", "generated"],
        1,
        "no zone of cell fleet has `lending`",
    ),
    "a load that is none": (["--load", "{trace}"], 1, "row 1: "),
    "an option without value": (["--draw", "load"], 1, "--draw load: expected NAME=VALUE"),
    "an option given twice": (["--draw", "load=1", "--draw", "load=2"], 1, "load is given twice"),
    "an option of another policy": (
        ["--cells", str(CELLS), "--median-work-slots", "2"],
        1,
        "drawing jobs for policy elastic: ",
    ),
    "a setting that is none": (
        ["--cells", str(CELLS), "--set", "training.policy.scheme=best"],
        1,
        "the changed cell is invalid",
    ),
    "a load of a recorded ledger": (
        ["--from-ledger", "{trace}", "--load", "generated"],
        1,
        "--load does not go with --from-ledger",
    ),
}


@pytest.mark.parametrize(("options", "status", "message"), BAD.values(), ids=BAD)
def test_what_does_not_go_together_is_one_line(capsys, trace, options, status, message):
    given = [option.format(trace=trace) for option in options]
    assert run(["simulate", *given]) == status
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("millrace: ")
    assert error.count("\n") == 1


@pytest.mark.slow
def test_figures_of_page_are_printed(capsys):
    page = (CELLS_DIRECTORY.parents[1] / "docs" / "command-line" / "simulate.md").read_text()
    shown = page[page.index("$ millrace simulate --load generated --days 3 --seed 3 --out sim") :]
    rows = [line for line in shown[: shown.index("└")].splitlines() if line.startswith("│")]
    assert len(rows) == 10
    assert run(["simulate", "--load", "generated", "--days", "3", "--seed", "3"]) == 0
    printed = capsys.readouterr().out.splitlines()
    for row in rows:
        assert [cell.strip() for cell in row.split("│")] in [
            [cell.strip() for cell in line.split("│")] for line in printed
        ]
