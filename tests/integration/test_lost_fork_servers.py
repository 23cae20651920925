"""An executor whose fork server is killed ends so that it is started again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from executors.lora.default_base import default_base_directory
from infra.topics import ensure_topics
from schemas.kafka_connection import KafkaConnection
from schemas.topics import topics
from tests.integration.deployment import until
from tests.support.executors import CELL, TINY_RECIPE

RUNNERS = ("elastic", "tuner", "moe")
TIMEOUT_S = 60.0


@pytest.fixture
def starting(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """An executor of each runner that forks its processes, which has just been started."""
    ensure_topics(KafkaConnection(bootstrap_servers=kafka), topics(topic_prefix, command_partitions=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_CACHE_DIR", str(tmp_path / "cache"))
        base_model = default_base_directory(TINY_RECIPE)
    settings = {
        "BOOTSTRAP_SERVERS": kafka,
        "TOPIC_PREFIX": topic_prefix,
        "CELL": CELL,
        "BASE_MODEL": "tiny",
        "MODEL_ROOT": str(tmp_path),
        "DATASET_ROOT": str(tmp_path),
        "BASE_MODEL_DIR": str(base_model),
        "STATE_ROOT": str(tmp_path / "state"),
        "OUTPUT_ROOT": str(tmp_path / "adapters"),
        "GPUS": "1",
    }
    executors = {}
    for runner in RUNNERS:
        of_one = {**settings, "NODE": runner, "RUNNERS": json.dumps([runner])}
        with (tmp_path / f"{runner}.log").open("wb") as log:
            executors[runner] = subprocess.Popen(
                [sys.executable, "-m", "executors.node"],
                env={**os.environ, **{f"MILLRACE_{name}": value for name, value in of_one.items()}},
                stderr=log,
            )
    yield executors
    for executor in executors.values():
        executor.kill()
        executor.wait(TIMEOUT_S)


def fork_server_of(executor: subprocess.Popen[bytes]) -> psutil.Process | None:
    assert executor.poll() is None, "it has ended before"
    children = psutil.Process(executor.pid).children()
    return next((each for each in children if "forkserver" in " ".join(each.cmdline())), None)


@pytest.mark.drill
def test_fork_server_killed_during_import_ends_executor(
    starting: dict[str, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    for runner, executor in starting.items():
        server = until(partial(fork_server_of, executor), f"{runner} has a fork server", TIMEOUT_S)
        server.send_signal(signal.SIGKILL)
    for runner, executor in starting.items():
        status, log = executor.wait(TIMEOUT_S), (tmp_path / f"{runner}.log").read_text()
        assert status == 1, log
        assert "executor ends status=1 error=LoadingInterruptedError" in log
