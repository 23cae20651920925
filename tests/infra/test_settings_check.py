"""Settings that no service could start with end `millrace up` before it starts anything."""

from pathlib import Path

import pytest

from infra.cli import run
from tests.integration.deployment import ROOT

CELLS = ROOT / "infra" / "cells"


@pytest.mark.parametrize(
    ("cells", "variable", "value", "words"),
    [
        ("demo", "MILLRACE_SESSION_TIMEOUT_S", "soon", "settings of the worker: session_timeout_s"),
        ("demo", "MILLRACE_HEARTBEAT_S", "7", "heartbeat_s is 7, more than half of session_timeout_s (8)"),
        ("demo", "MILLRACE_NODE_PARTITIONS", "{", "settings of the worker"),
        ("demo", "MILLRACE_LEAST_FREE_MIB", "-1", "settings of executors: least_free_mib"),
        ("demo", "MILLRACE_DEVICE", "abacus", "executors: runner lora: settings: device"),
        ("loans", "MILLRACE_LENDER_MARGIN_QUANTILE", "2", "settings of the lender: lender_margin_quantile"),
        ("loans", "MILLRACE_WORKER_HOST", "192.0.2.1", "no network interface here has the address"),
        ("demo", "MILLRACE_BROKER_PORT", "http", "broker_port"),
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
    assert run(["up", str(CELLS / "demo.yaml"), "--data-dir", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "settings of the worker" in told
    assert "settings of executors" in told
