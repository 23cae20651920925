"""`replay --from`, `forecast` and what-ifs refuse a log that was tampered with, or leads to no kept head."""

import json
from pathlib import Path

import pytest

from infra.cli import run
from tests.support.cells import bid, configuration
from tests.support.recordings import asked, played, write


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log's folder."""
    cell = configuration()
    ledger, decisions = played(cell, asked(cell, 8, {}, [(0.1, bid())]))
    write(tmp_path / "ledger.jsonl", ledger)
    (tmp_path / "decisions.jsonl").write_bytes(b"".join(each.canonical + b"\n" for each in decisions))
    return tmp_path


def head_of(capsys: pytest.CaptureFixture[str], log: Path) -> str:
    capsys.readouterr()
    assert run(["replay", "--from", str(log / "ledger.jsonl")]) == 0
    verdict, head = capsys.readouterr().out.splitlines()
    assert verdict.startswith("every decision follows from the ledger: 1 cell, ")
    assert head.startswith("head c=")
    return head.removeprefix("head ")


def cut(log: Path, events: int) -> None:
    """Cut both files behind so many events."""
    lines = (log / "ledger.jsonl").read_bytes().splitlines(keepends=True)[:events]
    (log / "ledger.jsonl").write_bytes(b"".join(lines))
    decisions = (log / "decisions.jsonl").read_bytes().splitlines(keepends=True)
    kept = [line for line in decisions if int(json.loads(line)["id"].split("-")[1]) < events]
    (log / "decisions.jsonl").write_bytes(b"".join(kept))


COMMANDS = {
    "replay": ["replay", "--from", "{ledger}"],
    "forecast": ["forecast", "{ledger}"],
    "what if": ["simulate", "--from-ledger", "{ledger}"],
}
commands = pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)


def ran(log: Path, command: list[str], *more: str) -> int:
    return run([part.format(ledger=log / "ledger.jsonl") for part in command] + list(more))


@commands
def test_head_accepts_whole_log_and_refuses_cut_one(capsys, log, command):
    head = head_of(capsys, log)
    offset, chain = head.removeprefix("c=").split(":")
    for kept in (head, f"{offset}:{chain}"):
        assert ran(log, command, "--expect-head", kept) == 0
        assert head in capsys.readouterr().out
    cut(log, 20)
    earlier = head_of(capsys, log)
    assert ran(log, command, "--expect-head", earlier) == 0
    capsys.readouterr()
    assert ran(log, command, "--expect-head", earlier, "--expect-head", head) == 1
    assert (
        f"the ledger of cell c ends at offset 19, and a head was kept of offset {offset}"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("command", [COMMANDS["forecast"], COMMANDS["what if"]], ids=["forecast", "what if"])
def test_head_is_required_without_decisions_too(capsys, log, command):
    head = head_of(capsys, log)
    (log / "decisions.jsonl").unlink()
    assert ran(log, command, "--expect-head", head) == 0
    output = capsys.readouterr()
    assert head in output.out
    assert "decisions.jsonl is missing" in output.err
    ledger = (log / "ledger.jsonl").read_bytes()
    (log / "ledger.jsonl").write_bytes(ledger.replace(b'"bid_micros":50000000', b'"bid_micros":60000000'))
    assert ran(log, command, "--expect-head", head) == 1
    assert "the log up to there is another one" in capsys.readouterr().err


@commands
@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b'"bid_micros":50000000', b'"bid_micros":60000000', "altered: decision c-"),
        (b'"user":"u"', b'"user":"u","user":"u"', "user is given twice"),
        (b'"cell":"c",', b'"cell":"c", ', "not in canonical form"),
        (b'"source":"test"', b'"source":"test","x":1', "not in canonical form"),
        (b"}}\n", b"}}x\n", "not JSON"),
    ],
    ids=["value", "repeated key", "space", "unknown attribute", "junk"],
)
def test_a_ledger_that_was_tampered_with_is_refused(capsys, log, command, old, new, fault):
    ledger = (log / "ledger.jsonl").read_bytes()
    assert old in ledger
    (log / "ledger.jsonl").write_bytes(ledger.replace(old, new, 1))
    assert ran(log, command) == 1
    error = capsys.readouterr().err
    assert fault in error
    assert error.count("\n") == 1


@commands
def test_what_is_no_head_is_refused(capsys, log, command):
    assert ran(log, command, "--expect-head", "12:abc") == 1
    assert "'12:abc' is no head: expected OFFSET:CHAIN" in capsys.readouterr().err


def test_a_head_is_for_recorded_ledgers(capsys):
    assert run(["simulate", "--expect-head", f"1:{64 * '0'}"]) == 1
    assert "goes with --from-ledger" in capsys.readouterr().err


def test_json_has_the_heads(capsys, log):
    head = head_of(capsys, log)
    assert run(["replay", "--from", str(log / "ledger.jsonl"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [f"c={h['offset']}:{h['chain']}" for h in found["heads"].values()] == [head]
    assert run(["forecast", str(log / "ledger.jsonl"), "--json"]) == 0
    assert f"c={json.loads(capsys.readouterr().out)['head']}" == head
    assert run(["simulate", "--from-ledger", str(log / "ledger.jsonl"), "--json"]) == 0
    assert f"c={json.loads(capsys.readouterr().out)['head']}" == head
