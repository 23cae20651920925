"""`millrace demo` in its short form, as a newcomer runs it."""

import json
import subprocess
import sys

import pytest

from tests.integration.deployment import ROOT

pytestmark = pytest.mark.integration


@pytest.mark.timeout(420)
def test_the_demo_trains_lives_through_a_crash_and_proves_its_log() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "infra.cli", "demo", "--bids", "10", "--span", "10", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3_000:]
    result = json.loads(ended.stdout)
    assert result["replay_ok"]
    assert result["killed_node"]
    assert result["returned"]
    assert result["admitted"] > 0
    assert len(result["adapters"]) == result["admitted"] - result["refunded"]
    assert all(adapter["last_loss"] < adapter["first_loss"] for adapter in result["adapters"])
