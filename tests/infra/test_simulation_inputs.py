"""`millrace simulate --events`, and the files that it reads."""

import json
from pathlib import Path
from typing import Any

import pytest

from infra.cli import run
from infra.commands.options import CELLS_DIRECTORY
from infra.event_files import EntriesFileError, read_timed_events
from schemas.auction.bids import VendorLeft, VendorQuoted
from schemas.changes import NodeRegistered, NodeRetired
from schemas.jobs import JobQuoteRequested, JobWithdrawalRequested

START_S = 1_000.0
GOOD = """\
- at_s: 30
  type: millrace.node.registered.v1
  node: n
  zone: tiny
  gpu_type: A40
  tariff: flat
- type: millrace.node.retired.v1
  cell: c
  node: n
- at_s: 40.5
  type: millrace.job.withdrawal_requested.v1
  job_id: j
  user: u
- at_s: 50
  type: millrace.vendor.quoted.v1
  vendor: v
  fixed_price: 0.25
  price_per_thousand_samples_micros: 3
  fixed_delay_s: 5
  delay_per_thousand_samples_s: 0
- {at_s: 60, type: millrace.vendor.left.v1, vendor: v}
- at_s: 70
  type: millrace.job.quote_requested.v1
  quote_id: q
  user: u
  zone: tiny
  workload: {kind: lora, work_samples: 200, dataset: {path: d.jsonl, samples: 1000}}
  terms: {kind: deadline, deadline_in_s: 60}
"""


def read(folder: Path, text: str, name: str = "events.yaml") -> list[Any]:
    (folder / name).write_text(text)
    return read_timed_events(str(folder / name), START_S, "c")


def test_events_are_read_with_their_times_and_conveniences(tmp_path):
    timed = read(tmp_path, GOOD)
    assert [(one.time_s - START_S, type(one.event)) for one in timed] == [
        (30.0, NodeRegistered),
        (0.0, NodeRetired),
        (40.5, JobWithdrawalRequested),
        (50.0, VendorQuoted),
        (60.0, VendorLeft),
        (70.0, JobQuoteRequested),
    ]
    assert {one.event.cell for one in timed} == {"c"}
    quoted, asked = timed[3].event, timed[5].event
    assert (quoted.fixed_price_micros, quoted.price_per_thousand_samples_micros) == (250_000, 3)
    assert asked.terms.deadline_s == START_S + 70 + 60


def test_events_are_read_from_json_lines(tmp_path):
    lines = [{"at_s": 1, "type": NodeRetired.TYPE, "node": node} for node in ("n", "m")]
    timed = read(tmp_path, "\n".join(map(json.dumps, lines)), "events.jsonl")
    assert [one.event.node for one in timed] == ["n", "m"]


BAD = {
    "no events": ("", None, "holds no event"),
    "no type": ("- {node: n}\n", 1, "type: no event that a simulation takes"),
    "an unknown type": (
        GOOD.replace("node.retired", "node.tired"),
        7,
        "type: no event that a simulation takes, which are millrace.zone.configured.v1, ",
    ),
    "a type that is a list": (GOOD.replace("millrace.node.retired.v1", "[a]"), 7, "type: no event"),
    "the configuration": (GOOD.replace("node.retired", "cell.configured"), 7, "type: no event"),
    "a tick": (GOOD.replace("node.retired", "clock.ticked"), 7, "type: no event"),
    "what a node reports": (GOOD.replace("node.retired", "node.online"), 7, "type: no event"),
    "a solver's answer": (GOOD.replace("node.retired", "solve.finished"), 7, "type: no event"),
    "what only intake says": (GOOD.replace("node.retired", "node.silent"), 7, "type: no event"),
    "another cell": (GOOD.replace("cell: c", "cell: d"), 8, "cell: not c, which is simulated"),
    "a time that is none": (GOOD.replace("30", "soon"), 1, "at_s: not a number of seconds"),
    "a time before the start": (GOOD.replace("30", "-1"), 1, "at_s: not a number of seconds"),
    "an unknown field": (GOOD.replace("gpu_type", "gpu"), 5, "gpu: Extra inputs"),
    "a missing field": (GOOD.replace("  tariff: flat\n", ""), 1, "tariff: Field required"),
    "an amount that is none": (GOOD.replace("0.25", "much"), 17, "fixed_price: not an amount"),
    "terms that are none": (GOOD.replace("kind: deadline", "kind: bid"), 28, "terms: kind bid is not known"),
}


@pytest.mark.parametrize(("text", "line", "fault"), BAD.values(), ids=BAD.keys())
def test_fault_is_one_line_with_file_and_line(tmp_path, text, line, fault):
    with pytest.raises(EntriesFileError) as error:
        read(tmp_path, text)
    place = f"events.yaml:{line}: " if line else "events.yaml: "
    assert str(error.value).startswith(f"{tmp_path}/{place}")
    assert fault in str(error.value)
    assert "\n" not in str(error.value)


CELLS = str(CELLS_DIRECTORY / "demo.yaml")
CHANGES = """\
- {at_s: 5, type: millrace.node.registered.v1, node: more, zone: tiny, gpu_type: A100, tariff: south}
- {at_s: 20, type: millrace.node.cordoned.v1, node: more}
- {at_s: 900, type: millrace.node.retired.v1, node: more}
"""


def simulate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Return code and output of `millrace simulate`."""
    code = run(["simulate", "--cells", CELLS, *arguments])
    output = capsys.readouterr()
    return code, output.out or output.err


def test_event_file_combines_with_any_jobs(tmp_path, capsys):
    events, jobs, out = tmp_path / "events.yaml", tmp_path / "jobs.yaml", tmp_path / "out"
    events.write_text(CHANGES)
    jobs.write_text(
        "{user: u, zone: tiny, at_s: 10, workload: {kind: lora, work_samples: 100, "
        "dataset: {path: d.jsonl, samples: 100}}, terms: {kind: bid, bid: 5, deadline_in_s: 300}}"
    )
    for workload, expected in ((["--jobs", "9"], 9), (["--job-file", str(jobs)], 1), (["--jobs", "0"], 0)):
        code, found = simulate(capsys, *workload, "--events", str(events), "--json", "--out", str(out))
        assert (code, json.loads(found)["jobs"]) == (0, expected)
        ledger = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
        kinds = {line["type"] for line in ledger if line["data"].get("node") == "more"}
        assert {"millrace.node.registered.v1", "millrace.node.online.v1", "millrace.node.retired.v1"} <= kinds
        assert run(["replay", "--from", str(out / "ledger.jsonl")]) == 0
        capsys.readouterr()


def test_fault_in_file_ends_command(tmp_path, capsys):
    events = tmp_path / "events.yaml"
    events.write_text(CHANGES.replace("node: more}", "nod: more}", 1))
    code, error = simulate(capsys, "--events", str(events))
    assert (code, error.count("\n")) == (1, 1)
    assert f"{events}:2: nod: Extra inputs" in error
