"""`millrace demo` as a newcomer runs it, on an idle machine and on a busy one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil
import pytest

from tests.integration.deployment import ROOT, until
from tests.support.processes import is_gone_within
from tests.support.processor_share import share_of_the_processor

HUNG_S = 5_400.0
"""No demo that goes on takes longer."""
BUSY = "while True: pass"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "infra.cli", "demo", *arguments]


def environment(folder: Path) -> Mapping[str, str]:
    return {**os.environ, "MILLRACE_DATA_DIR": str(folder)}


def demo(folder: Path, *arguments: str, prefix: Sequence[str] = ()) -> dict[str, Any]:
    """Run it by a prefixed command, and return what it prints for programs: one object, and nothing else."""
    ended = subprocess.run(
        [*prefix, *command("--json", *arguments)],
        cwd=ROOT,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3_000:]
    assert max(map(len, ended.stderr.splitlines())) <= 120
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Processes at full load for the length of the block."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def check_market(result: dict[str, Any], folder: Path) -> None:
    """Jobs are trained, those of a killed node too, and all is in the log."""
    assert result["replay_ok"]
    assert result["killed_node"]
    assert result["recovered"]
    assert "long-haul" in result["saved"]
    assert result["refunds_beside_the_kill"] == []
    assert result["completed"] == result["admitted"] - result["refunded"]
    # A job that is trained before its first report is due has no first loss.
    trained = [adapter for adapter in result["adapters"] if adapter["first_loss"] is not None]
    assert trained
    assert fmean(job["last_loss"] for job in trained) < fmean(job["first_loss"] for job in trained)
    assert len(list((folder / "demo" / "adapters").rglob("adapter_model.safetensors"))) >= len(trained)
    assert (folder / "demo" / "ledger.jsonl").is_file()


@pytest.mark.timeout(HUNG_S)
def test_first_scene_survives_crash_and_verifies_log(tmp_path: Path) -> None:
    result = demo(tmp_path, "--scene", "market")
    assert result["scenes"] == {"market": True}
    check_market(result, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(HUNG_S)
def test_all_scenes_come_about(tmp_path: Path) -> None:
    result = demo(tmp_path)
    assert result["scenes"] == dict.fromkeys(("market", "loan", "merging", "experts"), True)
    check_market(result, tmp_path)


@pytest.mark.drill
@pytest.mark.timeout(HUNG_S)
def test_demo_succeeds_next_to_two_busy_processes(tmp_path: Path) -> None:
    with busy(2):
        result = demo(tmp_path)
    assert all(result["scenes"].values())
    assert result["refunds_beside_the_kill"] == []


@pytest.mark.drill
@pytest.mark.timeout(HUNG_S)
def test_demo_succeeds_on_tenth_of_processor(tmp_path: Path) -> None:
    with share_of_the_processor(0.1) as prefix:
        result = demo(tmp_path, prefix=prefix)
    assert all(result["scenes"].values())
    assert result["refunds_beside_the_kill"] == []


@pytest.mark.drill
@pytest.mark.timeout(HUNG_S)
@pytest.mark.parametrize("line", ["arrivals", "broker answers", "clock runs", "first jobs"])
def test_ctrl_c_at_any_moment_leaves_nothing_running(tmp_path: Path, line: str) -> None:
    log = tmp_path / "demo.log"
    with log.open("w") as console:
        process = subprocess.Popen(
            command("--scene", "market"),
            cwd=ROOT,
            env=environment(tmp_path),
            stdout=console,
            stderr=subprocess.STDOUT,
        )
    until(lambda: line in log.read_text() or process.poll() is not None, line, HUNG_S)
    children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    process.send_signal(signal.SIGINT)
    assert process.wait(HUNG_S) == 130
    deadline_s = time.monotonic() + 10.0
    assert all(is_gone_within(child, deadline_s - time.monotonic()) for child in children)
    assert (
        log.read_text().splitlines()[-1]
        == "millrace: the demo is interrupted, and nothing of it runs any more"
    )
