"""The log of a service that runs for long: it is rotated, and keeps the newest lines."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.deployment import service as service_module
from infra.deployment.service import KEPT_LOGS, Service, command

PROGRAM = """
import sys
for number in range(2_000):
    print(number, flush=True)
    sys.stderr.flush()
    if number % 100 == 99:
        import time; time.sleep(0.05)
import time; time.sleep(600)
"""
LARGEST_BYTES = 1_000
TIMEOUT_S = 30.0


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(service_module, "LARGEST_LOG_BYTES", LARGEST_BYTES)
    service = Service("chatty", command([sys.executable, "-c", PROGRAM], {}), tmp_path)
    yield service
    service.stop()


def test_growing_log_is_rotated(service: Service, tmp_path: Path) -> None:
    service.start()
    end_s = time.monotonic() + TIMEOUT_S
    while "1999" not in "".join(path.read_text() for path in tmp_path.iterdir()):
        assert time.monotonic() < end_s
        service.keep_running()
        time.sleep(0.01)
    service.rotate_log()

    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["chatty.log", *(f"chatty.log.{number}" for number in range(1, KEPT_LOGS + 1))]
    newest = (tmp_path / "chatty.log.1").read_text() + (tmp_path / "chatty.log").read_text()
    assert newest.splitlines()[-1] == "1999"
    assert int((tmp_path / "chatty.log.2").read_text().splitlines()[0]) < int(newest.splitlines()[0])
