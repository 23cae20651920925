"""Settings that no service could start with end `millrace up` before it starts anything."""

from pathlib import Path

import pytest

from infra.cli import run
from infra.deployment.settings_check import has_gpu_driver
from tests.integration.deployment import ROOT

CELLS = ROOT / "infra" / "cells"


@pytest.mark.parametrize(
    ("cells", "variable", "value", "words"),
    [
        (
            "demo",
            "MILLRACE_SESSION_TIMEOUT_S",
            "soon",
            "settings of the worker: MILLRACE_SESSION_TIMEOUT_S: ",
        ),
        ("demo", "MILLRACE_HEARTBEAT_S", "7", "heartbeat_s is 7, more than half of session_timeout_s (8)"),
        (
            "demo",
            "MILLRACE_NODE_PARTITIONS",
            "{",
            "settings of the worker: MILLRACE_NODE_PARTITIONS: no JSON",
        ),
        ("demo", "MILLRACE_LEAST_FREE_MIB", "-1", "settings of executors: MILLRACE_LEAST_FREE_MIB: "),
        ("demo", "MILLRACE_DEVICE", "abacus", "executors: runner lora: settings: MILLRACE_DEVICE: "),
        (
            "loans",
            "MILLRACE_LENDER_MARGIN_QUANTILE",
            "2",
            "settings of the lender: MILLRACE_LENDER_MARGIN_QUANTILE: ",
        ),
        ("loans", "MILLRACE_RANK_HOST", "192.0.2.1", "no network interface here has the address"),
        ("loans", "MILLRACE_RANK_HOST", "not a host!", "MILLRACE_RANK_HOST: "),
        ("demo", "MILLRACE_WEB_HOST", "gar bage", "settings of the worker: MILLRACE_WEB_HOST: "),
        (
            "demo",
            "MILLRACE_SNAPSHOT_EVERY_S",
            "5e-324",
            "settings of the worker: MILLRACE_SNAPSHOT_EVERY_S: ",
        ),
        ("demo", "MILLRACE_CHECKPOINT_S", "5e-324", "settings: MILLRACE_CHECKPOINT_S: "),
        ("demo", "MILLRACE_BROKER_PORT", "http", "settings: MILLRACE_BROKER_PORT: "),
        ("demo", "MILLRACE_BROKER_HEAP_MIB", "999999999", "more than the"),
    ],
)
def test_up_refuses_what_a_service_would_refuse(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cells: str,
    variable: str,
    value: str,
    words: str,
) -> None:
    monkeypatch.delenv("MILLRACE_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setenv(variable, value)
    assert run(["up", str(CELLS / f"{cells}.yaml"), "--data-dir", str(tmp_path)]) == 1
    assert words in capsys.readouterr().err
    assert not (tmp_path / "broker").exists()


def test_every_fault_is_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLRACE_SESSION_TIMEOUT_S", "soon")
    monkeypatch.setenv("MILLRACE_LEAST_FREE_MIB", "-1")
    monkeypatch.setenv("MILLRACE_BROKER_HEAP_MIB", "x")
    assert run(["up", str(CELLS / "demo.yaml"), "--data-dir", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "MILLRACE_BROKER_HEAP_MIB" in told
    assert "settings of the worker" in told
    assert "settings of executors" in told


@pytest.mark.skipif(has_gpu_driver(), reason="this machine has a driver of a GPU")
def test_a_gpu_without_a_driver_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLRACE_DEVICE", "cuda")
    assert run(["up", str(CELLS / "demo.yaml"), "--data-dir", str(tmp_path)]) == 1
    assert "device: cuda, and this machine has no driver of a GPU" in capsys.readouterr().err
