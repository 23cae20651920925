"""The server from which a test process forks all workers and ranks."""

from functools import cache
from multiprocessing import forkserver

from executors.workers.processes import warm_up


@cache
def start_fork_server() -> None:
    """Have it import and compile all that any of them needs, once for each process that tests: in place of
    one that tests before may have started, which has imported less."""
    forkserver._forkserver._stop()
    warm_up("tests.support.preloaded_ranks")
