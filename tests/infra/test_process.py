import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from infra.kafka.process import SupervisedProcess
from tests.support.processes import is_gone_within

REPOSITORY = Path(__file__).parents[2]

STOP_TIMEOUT_S = 1.0

# Starts a supervised sleep, and a forked child that keeps a copy of every descriptor of its parent.
OWNER = """
import os, sys, time
from pathlib import Path
from infra.kafka.process import SupervisedProcess

folder = Path(sys.argv[1])
process = SupervisedProcess(
    ["sleep", "60"], working_dir=folder, console_path=folder / "console", stop_timeout_s=1.0, inherited=1
)
fork = os.fork()
if fork:
    print(process.pid, fork, flush=True)
time.sleep(60)
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[str], SupervisedProcess]]:
    started = []
    with (tmp_path / "inherited").open("w") as inherited:

        def start(script: str) -> SupervisedProcess:
            process = SupervisedProcess(
                ["sh", "-c", script],
                working_dir=tmp_path,
                console_path=tmp_path / "console",
                stop_timeout_s=STOP_TIMEOUT_S,
                inherited=inherited.fileno(),
            )
            started.append(process)
            return process

        yield start
    for process in started:
        process.kill()


def _pid(process: SupervisedProcess) -> int:
    assert process.pid is not None
    return process.pid


def test_stop_lets_the_command_end_in_order(run: Callable[[str], SupervisedProcess], tmp_path: Path) -> None:
    process = run("trap 'echo in order; exit 0' TERM; touch ready; while :; do sleep 0.01; done")
    _wait_for(tmp_path / "ready")
    process.stop()
    assert process.exit_status == 0
    assert process.pid is None
    assert (tmp_path / "console").read_text() == "in order\n"


def test_stop_kills_a_command_that_does_not_end(
    run: Callable[[str], SupervisedProcess], tmp_path: Path
) -> None:
    process = run("trap '' TERM; touch ready; while :; do sleep 0.01; done")
    _wait_for(tmp_path / "ready")
    process.stop()
    assert process.exit_status == 128 + signal.SIGKILL


def test_an_interrupted_stop_kills_at_once(run: Callable[[str], SupervisedProcess], tmp_path: Path) -> None:
    process = run("trap '' TERM; touch ready; while :; do sleep 0.01; done")
    _wait_for(tmp_path / "ready")
    pid = _pid(process)
    interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        process.stop()
    interrupt.join()
    assert is_gone_within(pid, 5.0)


def test_kill_does_not_ask(run: Callable[[str], SupervisedProcess]) -> None:
    process = run("exec sleep 60")
    process.kill()
    assert process.exit_status == 128 + signal.SIGKILL


def test_command_has_uninterrupted_session(
    run: Callable[[str], SupervisedProcess],
) -> None:
    assert os.getsid(_pid(run("exec sleep 60"))) != os.getsid(0)


def test_command_dies_with_killed_supervisor(run: Callable[[str], SupervisedProcess]) -> None:
    pid = _pid(run("exec sleep 60"))
    supervisor = psutil.Process(pid).parent()
    assert supervisor is not None
    supervisor.kill()
    assert is_gone_within(pid, timeout_s=5)


def test_command_dies_with_owner_despite_fork(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    command, fork = (int(pid) for pid in owner.stdout.readline().split())
    try:
        owner.kill()
        assert is_gone_within(command, timeout_s=5)
        assert psutil.pid_exists(fork)
    finally:
        os.kill(fork, signal.SIGKILL)
        owner.communicate()


def _wait_for(path: Path) -> None:
    deadline_s = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < deadline_s, f"{path} does not appear"
        time.sleep(0.01)
