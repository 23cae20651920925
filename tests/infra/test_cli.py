"""The command line without a broker: help, faults, simulations and their replay."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from infra.cli import COMMANDS, fault_line, load, run, summary
from tests.support.entry_points import install_entry_point
from tests.support.small_disk import small_disk

ROOT = Path(__file__).parents[2]
NOWHERE = "127.0.0.1:1"


def in_a_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "infra.cli", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_help_names_every_command():
    asked = in_a_process("--help")
    assert asked.returncode == 0
    for command in COMMANDS:
        assert f" {command} " in asked.stdout


def test_help_repeats_description_of_each_command():
    for place in COMMANDS.values():
        found = load(place)
        says = found.info.help if isinstance(found, typer.Typer) else found.__doc__.splitlines()[0]
        assert says == summary(place)


def test_help_is_quick():
    # In seconds of one core, and the best of a few: other work on the machine is not the command's fault.
    times_s = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        in_a_process("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times_s) < 1.0


def test_help_loads_nothing_heavy():
    check = (
        "import sys; from infra.cli import run; run(['--help']); "
        "heavy = {'torch', 'transformers', 'faust', 'confluent_kafka', 'numba', 'numpy', 'pydantic'}; "
        "sys.exit(', '.join(sorted(heavy & sys.modules.keys())) or 0)"
    )
    asked = subprocess.run(
        [sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (asked.returncode, asked.stderr) == (0, "")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Files with faults, by what is wrong with them."""
    contents = {
        "not_yaml.yaml": "- [",
        "not_cells.yaml": "cell: c\n",
        "bad_cells.yaml": "cells:\n  - cell: c\n    slot_s: fast\n",
        "bad_bid.yaml": "- cell: c\n  user: 3\n",
        "bad_trace.csv": "job_id,user\n",
        "jobs_philly.csv.gz": "job_id,user\n",
        "bad_ledger.jsonl": "{}\n",
        "decisions.jsonl": "",
        "quote.yaml": "- {cell: c, vendor: v, fixed_price: 1, price_per_thousand_samples: 1, "
        "fixed_delay_s: 1, delay_per_thousand_samples_s: 1}\n",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    paths = {Path(name).stem: str(tmp_path / name) for name in contents}
    return paths | {"none": str(tmp_path / "none"), "folder": str(tmp_path)}


FAULTS = {
    "an unknown command": (["nonsense"], "No such command 'nonsense'"),
    "an unknown option": (["simulate", "--nonsense"], "No such option: --nonsense"),
    "a missing argument": (["submit"], "Missing argument 'FILE'"),
    "a number that is none": (["simulate", "--jobs", "many"], "--jobs"),
    "a number out of range": (["simulate", "--pace", "2"], "--pace"),
    "cells that are no YAML": (["simulate", "--cells", "{not_yaml}"], "not_yaml.yaml:2: not YAML"),
    "cells that are none": (["simulate", "--cells", "{not_cells}"], "expected `cells:`"),
    "cells with faults": (["up", "{bad_cells}"], "cells[0].slot_s"),
    "no cells file": (["up", "{none}"], "none: No such file"),
    "a cell that the file lacks": (["simulate", "--cell", "nowhere"], "the file has no cell nowhere"),
    "a policy that is none": (["simulate", "--policy", "lottery"], "--policy"),
    "a fixed price without price": (["simulate", "--policy", "fixed-price"], "fixed-price needs"),
    "a price without fixed price": (
        ["simulate", "--policy", "eft", "--price-per-thousand-samples-micros", "1"],
        "no other policy takes it",
    ),
    "a trace that is none": (["simulate", "--trace", "{bad_trace}"], "bad_trace.csv: row 1: "),
    "an unknown scene": (
        ["demo", "--scene", "nope"],
        "Invalid value for '--scene': 'nope' is not one of 'market'",
    ),
    "a data folder that is a file": (
        ["up", "--data-dir", "{bad_bid}"],
        "bad_bid.yaml: there is a file in its place: set MILLRACE_DATA_DIR to a folder that can be written",
    ),
    "no trace": (["demo", "--trace", "{none}"], "none: No such file"),
    "a folder that is a file": (
        ["simulate", "--jobs", "1", "--span-slots", "1", "--out", "{bad_bid}"],
        "bad_bid.yaml: ",
    ),
    "bids with faults": (["submit", "{bad_bid}"], "bad_bid.yaml:"),
    "quotes with faults": (["vendor-quote", "{bad_bid}"], "bad_bid.yaml:2: user: Extra inputs"),
    "no bids": (["quote", "{none}"], "none: No such file"),
    "a ledger that is none": (["replay", "--from", "{bad_ledger}"], "bad_ledger.jsonl:1: "),
    "no ledger": (["replay", "--from", "{none}"], "none: No such file"),
    "no ledger to watch": (["watch", "--from", "{none}"], "none: No such file"),
    "a folder in place of a ledger": (["replay", "--from", "infra"], "such as infra/ledger.jsonl"),
    "decisions without ledger": (["replay", "--decisions", "{none}"], "--decisions goes with --from"),
    "an export of a file": (
        ["replay", "--from", "{bad_ledger}", "--export", "{none}"],
        "--export reads Kafka",
    ),
    "no broker": (["explain", "j", "--bootstrap-servers", NOWHERE], f"No Kafka broker answers at {NOWHERE}"),
    "a withdrawal without broker": (
        ["withdraw", "j", "--user", "u", "--bootstrap-servers", NOWHERE],
        f"No Kafka broker answers at {NOWHERE}",
    ),
    "a prefix that is none": (
        ["watch", "--topic-prefix", "a b", "--bootstrap-servers", NOWHERE],
        "--topic-prefix",
    ),
    "a type that does not travel": (["schemas", "print", "nonsense"], "there is no type nonsense"),
    "a clock for a cell that the file lacks": (
        ["clock", "infra/cells/demo.yaml", "--cell", "nowhere"],
        "has no cell nowhere",
    ),
    "an executor without broker": (
        ["executor", "--node", "n1", "--bootstrap-servers", NOWHERE],
        "No Kafka broker answers",
    ),
    "a benchmark of a trace that is none": (
        ["bench", "auction", "--traces", "{folder}"],
        "jobs_philly.csv.gz: row 1: ",
    ),
    "a benchmark into a file": (["bench", "spine", "--out", "{bad_bid}"], "bad_bid.yaml: File exists"),
    "a benchmark below a file": (["bench", "spine", "--out", "{bad_bid}/out"], "Not a directory"),
    "an unknown role": (["topics", "acls", "--principal", "kings=User:ada"], "there is no role kings"),
    "a principal that is none": (
        ["topics", "acls", "--principal", "users=ada"],
        "expected users=User:<name>",
    ),
    "a lender without broker": (
        ["lender", "--cell", "c", "--zone", "z", "--bootstrap-servers", NOWHERE],
        "No Kafka broker answers",
    ),
    "a vendor without quote": (["vendor", "/dev/null"], "/dev/null: holds no quote"),
    "a vendor without tokenizer": (
        ["vendor", "{quote}", "--datasets", "{folder}", "--tokenizer", "{none}"],
        "none: no tokenizer: found none of tokenizer.json",
    ),
    "a profile for no zone": (["profile", "default", "{none}", "--publish"], "--publish needs --cell and"),
    "a profile of no data": (["profile", "default", "{none}/d.jsonl"], "d.jsonl: "),
    "a profile on no device": (["profile", "default", "{none}", "--device", "tpu"], "device: "),
    "a load from nowhere": (
        ["load", "--cell", "c", "--zone", "z"],
        "give either --prometheus and --query, or --file",
    ),
    "a load from two places": (
        [
            "load",
            "--cell",
            "c",
            "--zone",
            "z",
            "--file",
            "{none}",
            "--prometheus",
            "http://h",
            "--query",
            "q",
        ],
        "give either --prometheus and --query, or --file",
    ),
    "a load without query": (
        ["load", "--cell", "c", "--zone", "z", "--prometheus", "http://h"],
        "--prometheus and --query go together",
    ),
    "a load of a server that is none": (
        ["load", "--cell", "c", "--zone", "z", "--prometheus", "h:9090", "--query", "q"],
        "'h:9090' is no URL of a server",
    ),
    "a load from no file": (["load", "--cell", "c", "--zone", "z", "--file", "{none}"], "none: No such file"),
    "loads per server from a file": (
        ["load", "--cell", "c", "--zone", "z", "--file", "{none}", "--per-server", "instance"],
        "--per-server goes with --prometheus",
    ),
    "a solver without broker": (["solver", "--bootstrap-servers", NOWHERE], "No Kafka broker answers"),
}


@pytest.mark.parametrize(("arguments", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_one_line_and_a_status(files, capsys, monkeypatch, arguments, fault):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("infra.log.target.ANSWER_TIMEOUT_S", 0.5)
    status = run([argument.format(**files) for argument in arguments])
    output = capsys.readouterr()
    assert status != 0
    assert output.out == ""
    assert output.err.startswith("millrace: ")
    assert output.err.count("\n") == 1
    assert fault in output.err


@pytest.mark.parametrize("command", [["watch"], ["solver"], ["worker"], ["executor", "--node", "n1"]])
def test_contradicting_connection_settings_are_one_line(capsys, monkeypatch, command):
    monkeypatch.setenv("MILLRACE_BOOTSTRAP_SERVERS", NOWHERE)
    monkeypatch.setenv("MILLRACE_CELL", "c")
    monkeypatch.setenv("MILLRACE_KAFKA_PASSWORD", "hush")
    assert run(command) == 1
    error = capsys.readouterr().err
    assert error.startswith("millrace: settings: ")
    assert "kafka_password: PLAINTEXT is without SASL: set kafka_security_protocol, or leave it out" in error
    assert error.count("\n") == 1
    assert "hush" not in error


def test_rights_are_printed_without_broker(capsys):
    arguments = ["topics", "acls", "--json", "--topic-prefix", "mine", "--worker-group", "others"]
    assert run([*arguments, "--principal", "nodes=User:CN=farm"]) == 0
    rights = json.loads(capsys.readouterr().out)
    of_nodes = [right for right in rights if right["role"] == "nodes"]
    assert [(right["principal"], right["name"], right["operation"]) for right in of_nodes] == [
        ("User:CN=farm", "mine.commands", "READ"),
        ("User:CN=farm", "mine.fleet", "WRITE"),
    ]
    groups = {(right["principal"], right["name"]) for right in rights if right["resource"] == "group"}
    assert groups == {("User:worker", "mine.others"), ("User:solver", "mine.solvers")}


def test_missing_deployment_is_explained(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MILLRACE_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("MILLRACE_BOOTSTRAP_SERVERS", raising=False)
    assert run(["watch"]) == 1
    assert "start one with `millrace up`" in capsys.readouterr().err


def test_a_fault_in_a_process_leaves_no_traceback(files):
    asked = in_a_process("submit", files["bad_bid"])
    assert asked.returncode == 1
    assert asked.stderr.count("\n") == 1


SIMULATION = [
    "simulate",
    "--cells",
    "infra/cells/demo.yaml",
    "--jobs",
    "30",
    "--span-slots",
    "10",
    "--seed",
    "4",
]


def simulate(capsys, *more: str) -> dict:
    assert run([*SIMULATION, "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_full_disk_is_one_line(tmp_path):
    with small_disk(tmp_path / "disk", mib=1) as disk:
        disk.fill(leave_bytes=0)
        with pytest.raises(OSError, match="No space left") as error:
            (disk.folder / "address.json").write_text("{}")

    assert fault_line(error.value) == "a file cannot be written: No space left on device"


def test_a_simulation_depends_on_its_seed_alone(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    figures = simulate(capsys, "--out", str(tmp_path / "one"))
    assert simulate(capsys, "--out", str(tmp_path / "two")) == figures
    assert figures["jobs"] == 30
    assert figures["admitted"] == len(figures["adapters"])
    for name in ("ledger.jsonl", "decisions.jsonl"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_simulated_ledger_is_replayed(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    figures = simulate(capsys, "--out", str(tmp_path))
    ledger = str(tmp_path / "ledger.jsonl")
    assert run(["replay", "--from", ledger, "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["ok"], verdict["cells"], verdict["events"]) == (True, 1, figures["events"])


def test_end_of_simulated_ledger_is_watched(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    figures = simulate(capsys, "--out", str(tmp_path))
    ledger = str(tmp_path / "ledger.jsonl")
    assert run(["watch", "--from", ledger]) == 0
    shown = capsys.readouterr().out
    assert f"{figures['jobs']} jobs" in shown
    assert "priced by demand of" in shown
    assert "base level" in shown
    assert "guard" in shown
    assert run(["watch", "--from", ledger, "--json"]) == 0
    kinds = [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()]
    assert kinds.count("event") == figures["events"]
    assert kinds.count("decision") == len((tmp_path / "decisions.jsonl").read_bytes().splitlines())
    assert run(["watch", "--from", ledger, "--cell", "nowhere"]) == 1
    assert "the log has no cell nowhere" in capsys.readouterr().err


def test_differing_replay_names_place_and_fails(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    simulate(capsys, "--out", str(tmp_path))
    decisions = tmp_path / "decisions.jsonl"
    lines = decisions.read_bytes().splitlines(keepends=True)
    altered = next(i for i, line in enumerate(lines) if b'"payment_micros":' in line)
    lines[altered] = lines[altered].replace(b'"payment_micros":', b'"payment_micros":1')
    decisions.write_bytes(b"".join(lines))
    assert run(["replay", "--from", str(tmp_path / "ledger.jsonl")]) == 1
    output = capsys.readouterr()
    assert "NOT VERIFIED" in output.out
    assert f"decisions.jsonl:{altered + 1}" in output.err


def test_a_simulation_takes_its_arrivals_from_a_trace(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    header = "job_id,user,submit_time_s,duration_s,gpus,gpu_type,status,model"
    rows = [f"j{i},user-{i % 2},{i * i},{60 * (i + 1)},1,,," for i in range(30)]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join([header, *rows]) + "\n")
    simulate(capsys, "--trace", str(trace), "--out", str(tmp_path))
    events = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    bids = [event["data"] for event in events if event["type"] == "millrace.job.submitted.v1"]
    assert {bid["user"] for bid in bids} == {"user-0", "user-1"}
    assert run([*SIMULATION, "--trace", str(trace), "--jobs", "31"]) == 1
    assert "has 30 jobs, 31 are needed" in capsys.readouterr().err


def test_schemas_are_listed_and_printed(capsys):
    assert run(["schemas", "print"]) == 0
    names = capsys.readouterr().out.split()
    assert "millrace.job.submitted.v1" in names
    assert run(["schemas", "print", "millrace.job.submitted.v1"]) == 0
    assert "workload" in json.loads(capsys.readouterr().out)["properties"]
    assert run(["schemas", "check"]) == 0


def test_schemas_of_installed_policy_are_printed_not_checked(tmp_path):
    (tmp_path / "plugin.py").write_text(
        "from dataclasses import replace\n"
        "from typing import ClassVar\n"
        "from schemas.base import Outcome\n"
        "from tests.round_robin.kind import ROUND_ROBIN\n\n"
        "class WithoutDocstring(Outcome):\n"
        "    TYPE: ClassVar = 'test.without_docstring.v1'\n\n"
        "POLICY = replace(ROUND_ROBIN, outcomes=(*ROUND_ROBIN.outcomes, WithoutDocstring))\n"
    )
    site = install_entry_point(tmp_path, "millrace.policies", "round_robin", "plugin:POLICY")
    beside = {"PYTHONPATH": str(site)}
    printed = in_a_process("schemas", "print", "test.without_docstring.v1", **beside)
    assert printed.returncode == 0, printed.stderr
    assert json.loads(printed.stdout)["$id"] == "test.without_docstring.v1.json"
    checked = in_a_process("schemas", "check", **beside)
    assert checked.returncode == 0, checked.stderr
