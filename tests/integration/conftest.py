"""Fixtures of integration tests: deployments as `millrace up` runs them, and ports for them."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.kafka.storage import reserve_port
from tests.integration.deployment import DEMO_CELLS, Up


@pytest.fixture
def port() -> Iterator[int]:
    """A port that nothing else is given until the process that it is for takes it."""
    with reserve_port(0) as reservation:
        yield reservation.getsockname()[1]


@pytest.fixture
def start_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Up]]:
    """Starts deployments without executors, and ends those that a failed test leaves."""
    monkeypatch.delenv("MILLRACE_BOOTSTRAP_SERVERS", raising=False)
    started: list[Up] = []

    def start(*arguments: str, cells: Path = DEMO_CELLS) -> Up:
        where = ["--no-executors", "--data-dir", str(tmp_path / "data")]
        started.append(Up(tmp_path / f"up-{time.monotonic_ns()}.log", str(cells), *where, *arguments))
        return started[-1]

    yield start
    for up in started:
        if up.process.poll() is None:
            up.interrupt()
