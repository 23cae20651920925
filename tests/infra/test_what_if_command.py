"""`millrace simulate --from-ledger` from end to end."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from infra.cli import run
from tests.support.cells import bid, configuration, online, tick
from tests.support.recordings import asked, played, write

ROOT = Path(__file__).parents[2]
DEMO = ["simulate", "--cells", "infra/cells/demo.yaml", "--jobs", "30", "--span-slots", "10", "--seed", "4"]


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    """A simulated log's folder."""
    folder = tmp_path_factory.mktemp("log")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert run([*DEMO, "--out", str(folder)]) == 0
    return folder


def asked_what_if(capsys, log: Path, *more: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["simulate", "--from-ledger", str(log / "ledger.jsonl"), "--json", *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def read_off(log: Path) -> dict[str, dict[str, Any]]:
    """Return the outcome of each job, from the two files alone."""
    events = [json.loads(line) for line in (log / "ledger.jsonl").read_text().splitlines()]
    runs = {
        event["id"]: event["data"]["run_id"]
        for event in events
        if event["type"] == "millrace.run.finished.v1"
    }
    jobs: dict[str, dict[str, Any]] = {}
    for line in (log / "decisions.jsonl").read_text().splitlines():
        decision = json.loads(line)
        data = decision["data"]
        match decision["type"]:
            case "millrace.job.admitted.v1":
                jobs[data["job_id"]] = {
                    "state": "admitted",
                    "reason": None,
                    "payment_micros": data["payment_micros"],
                    "finish_run": None,
                }
            case "millrace.job.rejected.v1":
                jobs[data["job_id"]] = {
                    "state": "rejected",
                    "reason": data["reason"],
                    "payment_micros": 0,
                    "finish_run": None,
                }
            case "millrace.job.completed.v1":
                jobs[data["job_id"]] |= {"state": "completed", "finish_run": runs[decision["cause"]]}
    return jobs


@pytest.mark.parametrize(
    "change",
    [
        pytest.param((), id="nothing"),
        pytest.param(("--policy", "eft"), id="earliest finish"),
        pytest.param(
            ("--policy", "fixed-price", "--price-per-thousand-samples-micros", "300000"), id="fixed price"
        ),
        pytest.param(("--scale-nodes", "2", "--add-nodes", "tiny:A100=1"), id="more nodes"),
        pytest.param(
            (
                *(
                    "--policy",
                    "pdftsp",
                    "--money-unit-micros",
                    "5000",
                    "--max-value-per-compute-micros",
                    "50000",
                ),
                *("--max-value-per-memory-micros", "50000"),
            ),
            id="declared prices",
        ),
    ],
)
def test_differences_are_those_of_the_two_logs(capsys, log, tmp_path, change):
    found = asked_what_if(capsys, log, *change, "--out", str(tmp_path))
    before, after = read_off(log), read_off(tmp_path)
    told = {job["job_id"]: job for job in found["jobs"]}
    assert len(told) == 30
    assert {id: job["before"] for id, job in told.items()} == before
    assert {id: job["after"] for id, job in told.items()} == after
    assert found["simulation_is_exact"]
    differ = {id for id, job in told.items() if job["differs"]}
    assert differ == {id for id in before if before[id] != after[id]}
    assert bool(differ) == bool(change)
    for side, jobs in (("before", before), ("simulated", before), ("after", after)):
        totals = found["totals"][side]
        states = [job["state"] for job in jobs.values()]
        assert totals["completed"] == states.count("completed")
        assert sum(totals["rejected"].values()) == states.count("rejected")
        assert totals["revenue_micros"] == sum(job["payment_micros"] for job in jobs.values())
    assert run(["replay", "--from", str(tmp_path / "ledger.jsonl"), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["ok"], verdict["events"]) == (True, found["totals"]["after"]["events"])


def test_a_file_of_cells_gives_other_tariffs(capsys, log, tmp_path):
    text = (ROOT / "infra/cells/demo.yaml").read_text()
    cells = tmp_path / "dear.yaml"
    first, rest = text.split("micros_per_kwh: [", 1)
    cells.write_text(f"{first}micros_per_kwh: [{', '.join(['900000000'] * 24)}]{rest.split(']', 1)[1]}")
    found = asked_what_if(capsys, log, "--cells", str(cells))
    assert found["totals"]["after"]["admitted"] < found["totals"]["before"]["admitted"]


def test_differing_jobs_and_totals_are_printed(capsys, log):
    capsys.readouterr()
    assert run(["simulate", "--from-ledger", str(log / "ledger.jsonl"), "--policy", "eft"]) == 0
    shown = capsys.readouterr().out
    assert (
        "each of the 30 jobs gets the cell's decision: every difference below is due to the change" in shown
    )
    jobs = asked_what_if(capsys, log, "--policy", "eft")["jobs"]
    assert [job["job_id"] in shown for job in jobs] == [job["differs"] for job in jobs]
    assert "proven ratio" in shown
    assert run(["simulate", "--from-ledger", str(log / "ledger.jsonl")]) == 0
    assert "no job differs" in capsys.readouterr().out


def test_executors_that_were_slower_are_a_third_side(capsys, log):
    assert run(["simulate", "--from-ledger", str(log / "ledger.jsonl"), "--pace", "0.4"]) == 0
    shown = capsys.readouterr().out
    assert "before → simulated without the change → after the change" in shown
    assert "completed → refunded (" in shown


def test_departed_nodes_and_zones_are_remarked(capsys, tmp_path):
    cell = configuration()
    ledger, decisions = played(cell, asked(cell, 8, {}, [(0.1, bid())]))
    path = write(tmp_path / "ledger.jsonl", ledger)
    (tmp_path / "decisions.jsonl").write_bytes(b"".join(each.canonical + b"\n" for each in decisions))
    assert run(["simulate", "--from-ledger", str(path), "--scale-nodes", "0.4", "--json"]) == 0
    output = capsys.readouterr()
    remark = "not in the changed cell: nodes a2, b1; their events are left out"
    assert output.err == f"{remark}\n"
    assert json.loads(output.out)["notes"] == [remark]


def test_a_ledger_without_its_decisions_is_remarked_upon(capsys, log, tmp_path):
    copy = shutil.copy(log / "ledger.jsonl", tmp_path)
    capsys.readouterr()
    assert run(["simulate", "--from-ledger", str(copy), "--json"]) == 0
    remark = f"{tmp_path / 'decisions.jsonl'} is missing: nothing proves that the ledger is complete"
    assert json.loads(capsys.readouterr().out)["notes"] == [remark]


def test_unchanged_rounding_is_remarked(capsys, log):
    remark = "--scale-nodes 1.01 is rounded to as many nodes as there are: "
    found = asked_what_if(capsys, log, "--scale-nodes", "1.01")
    assert [note.startswith(remark) for note in found["notes"]] == [True]
    assert not any(job["differs"] for job in found["jobs"])


def test_ledger_of_baseline_runs_under_priced_auction(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    assert run([*DEMO, "--policy", "eft", "--out", str(tmp_path)]) == 0
    some = ("--money-unit-micros", "2000", "--max-value-per-compute-micros", "9000")
    ledger = tmp_path / "ledger.jsonl"
    capsys.readouterr()
    assert run(["simulate", "--from-ledger", str(ledger), "--policy", "published", *some]) == 1
    fault = capsys.readouterr().err
    assert f"zone tiny of {ledger} declares no bounds on bids" in fault
    assert fault.endswith(": give --max-value-per-memory-micros\n")
    bounds = (*some, "--max-value-per-memory-micros", "9000")
    found = asked_what_if(capsys, tmp_path, "--policy", "pdftsp", *bounds)
    before, after = found["totals"]["before"], found["totals"]["after"]
    assert before["revenue_micros"] < after["revenue_micros"]


@pytest.fixture(scope="module")
def files(log, tmp_path_factory) -> dict[str, str]:
    """Ledgers with faults, by what is wrong with them, and files to compare with."""
    folder = tmp_path_factory.mktemp("faults")
    lines = (log / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    decisions = (log / "decisions.jsonl").read_bytes().splitlines(keepends=True)
    contents = {
        "whole": lines,
        "broken": [*lines[:20], lines[20][:40] + b"\n", *lines[21:]],
        "disordered": [*lines[:5], lines[4]],
        "foreign": decisions,
        "headless": lines[1:],
        "empty": [],
    }
    for name, content in contents.items():
        (folder / f"{name}.jsonl").write_bytes(b"".join(content))
    (folder / "altered").mkdir()
    (folder / "altered/ledger.jsonl").write_bytes(b"".join(lines))
    forged = next(index for index, line in enumerate(decisions) if b'"payment_micros":' in line)
    decisions[forged] = decisions[forged].replace(b'"payment_micros":', b'"payment_micros":1')
    (folder / "altered/decisions.jsonl").write_bytes(b"".join(decisions))
    demo = (ROOT / "infra/cells/demo.yaml").read_text()
    (folder / "other.yaml").write_text(demo.replace("cell: demo", "cell: other"))
    (folder / "slots.yaml").write_text(demo.replace("slot_s: ", "slot_s: 1"))
    several = [online("a1"), tick(0)]
    cells = [configuration(), configuration(cell="d")]
    write(
        folder / "several.jsonl",
        [
            entry
            for cell in cells
            for entry in asked(
                cell, 1, {}, [(0.5, e.model_copy(update={"cell": cell.cell})) for e in several]
            )
            if entry.envelope.event.cell == cell.cell
        ],
    )
    named = {path.stem: str(path) for path in folder.iterdir() if path.is_file()}
    return named | {"altered": str(folder / "altered/ledger.jsonl"), "forged": str(forged + 1)}


FAULTS = {
    "no such file": (["{whole}.gone"], "whole.jsonl.gone: No such file"),
    "a broken line": (["{broken}"], "broken.jsonl:21: not a ledger event with an offset"),
    "out of order": (["{disordered}"], "disordered.jsonl:6: cell demo: offset 4 comes after 4"),
    "a foreign file": (["{foreign}"], "foreign.jsonl:1: not a ledger event with an offset"),
    "an empty file": (["{empty}"], "empty.jsonl: the ledger configures no cell"),
    "no configuration": (["{headless}"], "headless.jsonl: the ledger configures no cell"),
    "a cell that it lacks": (["{whole}", "--cell", "nowhere"], "configures no cell nowhere"),
    "several cells": (["{several}"], "several cells, such as c and d: choose with --cell"),
    "decisions that are not its own": (["{altered}"], "decisions.jsonl:{forged}"),
    "cells of other names": (["{whole}", "--cells", "{other}"], "has no cell demo, it has other"),
    "other slots": (["{whole}", "--cells", "{slots}"], "slots could not be compared"),
    "a zone that it lacks": (["{whole}", "--add-nodes", "z:A100=1"], "cell demo has no zone z"),
    "nodes that are none": (["{whole}", "--add-nodes", "three"], "expected ZONE:GPU_TYPE=N"),
    "a price of no policy": (
        ["{whole}", "--policy", "eft", "--money-unit-micros", "3"],
        "under policy eft, which has no money_unit_micros",
    ),
    "an option of drawn workloads": (["{whole}", "--jobs", "200"], "--jobs does not go with --from-ledger"),
    "other jobs": (["{whole}", "--job-file", "{whole}"], "--job-file does not go with --from-ledger"),
    "other events": (["{whole}", "--events", "{whole}"], "--events does not go with --from-ledger"),
}


@pytest.mark.parametrize(("arguments", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_one_line(capsys, files, arguments, fault):
    capsys.readouterr()
    assert run(["simulate", "--from-ledger", *(argument.format(**files) for argument in arguments)]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert fault.format(**files) in output.err


def test_the_ledger_itself_is_never_written_over(capsys, log):
    content = (log / "ledger.jsonl").read_bytes()
    assert run(["simulate", "--from-ledger", str(log / "ledger.jsonl"), "--out", str(log)]) == 1
    assert "would overwrite the ledger" in capsys.readouterr().err
    assert (log / "ledger.jsonl").read_bytes() == content


def test_changed_nodes_get_same_drawn_bids(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    bids = {}
    for name, change in (("as it is", []), ("larger", ["--add-nodes", "tiny:A100=2"])):
        assert run([*DEMO, "--out", str(tmp_path), *change]) == 0
        events = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
        bids[name] = [event["data"] for event in events if event["type"] == "millrace.job.submitted.v1"]
        nodes = {event["data"]["node"] for event in events if event["type"] == "millrace.node.online.v1"}
        assert ("added-2" in nodes) == (name == "larger")
    assert bids["as it is"] == bids["larger"]
