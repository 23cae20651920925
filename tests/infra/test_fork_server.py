"""Processes that are forked from a server, and their workers."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from infra.deployment.fork_server import ForkServer, fork_server
from infra.deployment.service import Service
from infra.errors import CommandError
from tests.support.processes import is_gone_within

TIMEOUT_S = 30.0
NEEDS_SERVER = """
import sys, time
from pathlib import Path
from infra.deployment.fork_server import fork_server
from infra.deployment.service import Service

folder = Path(sys.argv[1])
with fork_server(folder, modules=()) as server:
    launch = server.forked("waiting", {}, "tests.support.forked:wait_for_sigterm", str(folder / "said"))
    Service("waiting", launch, folder).start()
    time.sleep(600)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    with fork_server(tmp_path, modules=()) as server:
        yield server


def started(server: ForkServer, folder: Path, function: str) -> Service:
    launch = server.forked(
        "forked", {"MILLRACE_OF_THE_TEST": "7"}, f"tests.support.forked:{function}", str(folder / "said")
    )
    service = Service("forked", launch, folder)
    service.start()
    return service


def fault_of(server: ForkServer) -> str:
    try:
        server.deaths()
    except CommandError as error:
        return str(error)
    return ""


def until(path: Path, text: str = "") -> str:
    end_s = time.monotonic() + TIMEOUT_S
    while not path.exists() or text not in path.read_text() or not path.read_text():
        assert time.monotonic() < end_s, path
        time.sleep(0.01)
    return path.read_text()


def test_forked_service_has_own_variables_umask_and_log(server, tmp_path):
    before = os.umask(0o077)
    try:
        service = started(server, tmp_path, "report")
        found = json.loads(until(tmp_path / "said"))
    finally:
        os.umask(before)
    worker = json.loads(until(tmp_path / "said.worker"))
    assert found == {"variable": "7", "umask": 0o077, "parent": server.service.pid, "torch": False}
    assert worker == found
    until(service.log_path, "said by the service\n")
    until(service.log_path, "said by its worker\n")
    assert is_gone_within(service.pid or 0, TIMEOUT_S) or service.exit_status == 0


def test_service_stops_in_order_with_known_status(server, tmp_path):
    service = started(server, tmp_path, "wait_for_sigterm")
    until(tmp_path / "said", "waiting")
    process = psutil.Process(service.pid)
    service.stop()
    assert not process.is_running()
    assert until(tmp_path / "said") == "ended in order"


def test_a_killed_service_is_started_again(server, tmp_path):
    service = started(server, tmp_path, "wait_for_sigterm")
    until(tmp_path / "said", "waiting")
    first = service.pid
    os.kill(first, signal.SIGKILL)
    while service.exit_status is None:
        time.sleep(0.01)
    assert service.exit_status == 128 + signal.SIGKILL
    assert service.keep_running()
    assert service.pid not in (None, first)
    service.stop()


def test_services_end_with_server_and_restart(server, tmp_path):
    service = started(server, tmp_path, "wait_for_sigterm")
    until(tmp_path / "said", "waiting")
    first = service.pid
    os.kill(server.service.pid, signal.SIGKILL)
    assert is_gone_within(first, TIMEOUT_S)
    while service.exit_status is None:
        time.sleep(0.01)
    assert service.keep_running()
    assert server.deaths() == 1
    assert psutil.Process(service.pid).parent().pid == server.service.pid
    service.stop()


def test_service_ends_when_its_requester_is_killed(tmp_path):
    owner = subprocess.Popen([sys.executable, "-c", NEEDS_SERVER, str(tmp_path)])
    until(tmp_path / "said", "waiting")
    owner.kill()
    owner.wait()
    assert until(tmp_path / "said", "ended in order")


def test_server_reports_missing_library(tmp_path):
    with fork_server(tmp_path, modules=("no_such_module",)) as server:
        while "keeps dying" not in (fault := fault_of(server)):
            time.sleep(0.01)
        assert "no_such_module" in fault
        with pytest.raises((OSError, EOFError)):
            started(server, tmp_path, "report")
        assert not server.is_ready
