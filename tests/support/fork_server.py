"""The server from which test processes fork all executors, workers and ranks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from tempfile import TemporaryDirectory

from executors.processes.fork_server import PRELOADED, attached
from executors.processes.forked_process import warm_up
from infra.deployment.fork_server import Forks, fork_server

SHARED = "MILLRACE_TESTS_FORK_SERVER"
"""The address of one that several test processes share."""
PRELOADED_RANKS = "tests.support.preloaded_ranks"


@cache
def start_fork_server() -> None:
    """Have it import and compile all that any of them needs, once for each process that tests: in place of
    one that tests before may have started, which has imported less."""
    if SHARED not in os.environ:
        forkserver._forkserver._stop()
        warm_up(PRELOADED_RANKS)


@contextmanager
def shared_fork_server() -> Iterator[None]:
    """Have one that the test processes started in the block share: to import and compile takes ten seconds of
    a core."""
    modules = [*PRELOADED, PRELOADED_RANKS, "executors.lora.slots.runner", "executors.node"]
    with (
        TemporaryDirectory(prefix="millrace-tests-") as log_folder,
        fork_server(Path(log_folder), modules) as server,
    ):
        os.environ[SHARED] = str(server.address)
        try:
            yield
        finally:
            del os.environ[SHARED]


def shared_forks() -> Forks | None:
    """Forks from that one, if there is one."""
    return Forks() if SHARED in os.environ else None


@contextmanager
def attached_to_shared() -> Iterator[None]:
    """Use that one in this process, if there is one."""
    address = os.environ.get(SHARED)
    if address is None:
        yield
        return
    with attached(Path(address)):
        yield
