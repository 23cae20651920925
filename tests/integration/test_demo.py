"""`millrace demo` in its short form, as a newcomer runs it."""

import json
import re
import subprocess
import sys
from statistics import fmean

import pytest

from tests.integration.deployment import ROOT


@pytest.mark.timeout(540)
def test_the_demo_trains_lives_through_a_crash_and_proves_its_log() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "infra.cli", "demo", "--bids", "10", "--span", "10", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=520,
        check=False,
    )
    # So few bids may all have their plans on the other node by the time that the killed one is back.
    idle = re.search(
        r"^millrace: \S+ came online again after the kill and began no run since$", ended.stderr, re.M
    )
    assert ended.returncode == 0 or idle, ended.stderr[-3_000:]
    result = json.loads(ended.stdout)
    assert result["replay_ok"]
    assert result["killed_node"]
    assert result["returned"]
    assert result["loan_ok"]
    assert result["merging_ok"]
    assert result["experts_ok"]
    assert result["completed"] == result["admitted"] - result["refunded"]
    assert result["market_adapters"] > 0
    # A job that is trained before its first report is due has no first loss.
    trained = [adapter for adapter in result["adapters"] if adapter["first_loss"] is not None]
    assert trained
    assert fmean(job["last_loss"] for job in trained) < fmean(job["first_loss"] for job in trained)
