"""A whole deployment on a secured broker, each part under its own principal."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from infra.cli import run
from tests.integration.deployment import ROOT, UP_TIMEOUT_S, bids_file, demo_bid, until


@pytest.mark.drill
@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_bids_are_decided_shown_and_verified(start_up, tmp_path, monkeypatch, capsys):
    up = start_up("--secure")
    up.await_ready()
    assert "a principal for each role" in up.output
    monkeypatch.setenv("MILLRACE_DATA_DIR", str(tmp_path / "data"))
    bids = bids_file(tmp_path / "bids.yaml", demo_bid("rich", 3))
    quote = {"cell": "demo", "vendor": "couriers", "leaves": True}
    (tmp_path / "quotes.yaml").write_text(json.dumps([quote]))

    def printed(*arguments: str) -> str:
        status = run(list(arguments))
        output = capsys.readouterr()
        assert (status, output.err) == (0, ""), (arguments, output)
        return output.out

    # Each of them finds the deployment and connects as the role whose part it plays.
    assert "takes its quote back" in printed("vendor-quote", str(tmp_path / "quotes.yaml"))
    assert "a bid of" in printed("quote", bids)
    (decided,) = map(json.loads, printed("submit", bids, "--json").splitlines())
    assert decided["state"] == "admitted"
    until(lambda: "slot " in printed("explain", "rich"), "a slot is assigned, so the clock ticks")
    assert "rich" in printed("watch", "--once")
    printed("topics", "check")
    assert "every decision follows from the ledger" in printed("replay")

    # An executor is set up from the log, which nodes may not read, and then connects as a node.
    log = tmp_path / "executor.log"
    with log.open("w") as output:
        executor = subprocess.Popen(
            [sys.executable, "-m", "infra.cli", "executor", "--node", "node-a100"], cwd=ROOT, stderr=output
        )
    until(lambda: "node online node=node-a100" in log.read_text(), "the executor works", UP_TIMEOUT_S)
    executor.terminate()
    assert executor.wait(UP_TIMEOUT_S) == 0

    credentials = tmp_path / "data" / "broker" / "credentials"
    line = subprocess.run(
        ["kcat", "-C", "-q", "-e", "-F", str(credentials / "users.conf"), "-t", "millrace.decisions"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert '"job_id":"rich"' in line
    # A shell that has read a principal's file is that principal, whatever the command's usual one.
    shell = f". {credentials / 'users.env'} && exec {sys.executable} -m infra.cli replay"
    denied = subprocess.run(
        ["sh", "-c", shell], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert denied.returncode == 1
    assert re.search(r"user users may not read topic millrace\.ledger", denied.stderr)

    # Started without being asked to be secured, it is all the same.
    assert up.interrupt() == 130
    up = start_up()
    up.await_ready()
    assert "a principal for each role" in up.output
    assert "rich" in printed("watch", "--once")
