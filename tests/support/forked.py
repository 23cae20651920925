"""Functions of the processes in the tests of the fork server."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from pydantic import BaseModel

from executors.gang.messages import MESSAGES
from executors.processes.fork_server import share
from executors.processes.forked_process import ForkedProcess

FOREVER_S = 600.0


class Order(BaseModel):
    path: str


def report(path: str) -> None:
    """Write down what this process is surrounded by, and how a worker of it stands."""
    sys.stderr.write("said by the service\n")
    share()
    worker = ForkedProcess(
        "tests.support.forked:report_worker", Order(path=f"{path}.worker"), MESSAGES, "worker"
    )
    while worker.is_alive:
        time.sleep(0.01)
    Path(path).write_text(json.dumps(_surroundings()))


def report_worker(order_json: str, _connection: object) -> None:
    sys.stderr.write("said by its worker\n")
    Path(Order.model_validate_json(order_json).path).write_text(json.dumps(_surroundings()))


def wait_for_sigterm(path: str) -> None:
    """Write `waiting` to the file, and at SIGTERM that the process ended in order."""

    def end(_number: int, _frame: object) -> None:
        Path(path).write_text("ended in order")
        sys.exit(3)

    signal.signal(signal.SIGTERM, end)
    Path(path).write_text("waiting")
    time.sleep(FOREVER_S)


def _surroundings() -> dict[str, object]:
    umask = os.umask(0)
    os.umask(umask)
    return {
        "variable": os.environ.get("MILLRACE_OF_THE_TEST"),
        "umask": umask,
        "parent": os.getppid(),
        "torch": "torch" in sys.modules,
    }
