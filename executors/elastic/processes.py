"""Worker processes of a node, forked from a server that has imported torch and has nothing else.

multiprocessing's fork server imports once, in a process without threads and without a CUDA context, so that a
worker begins in some hundredths of a second instead of the ten seconds that the imports take.
"""

import atexit
import multiprocessing
import os
import weakref
from contextlib import suppress
from multiprocessing.connection import Connection

from executors.elastic.messages import (
    WORDS,
    Ended,
    Failed,
    Joined,
    Membership,
    Progress,
    Release,
    WorkerOrder,
)

_PRELOADED = (
    "torch",
    "torch.distributed",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "peft",
    "executors.elastic.worker",
)

_context = multiprocessing.get_context("forkserver")
_alive: "weakref.WeakSet[WorkerProcess]" = weakref.WeakSet()


class WorkerProcess:
    """A worker process, as its node sees it."""

    def __init__(self, order: WorkerOrder) -> None:
        """Start it.

        Raises:
            OSError: the machine has no room for another process.
            EOFError: the fork server has ended just now.
        """
        self._connection, theirs = _context.Pipe()
        self._process = _context.Process(
            target=_work, args=(order.model_dump_json(), theirs), name=f"{order.job_id}-worker", daemon=True
        )
        self._process.start()
        theirs.close()
        _alive.add(self)

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process.pid is not None, "it was started"
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.is_alive()

    @property
    def exit_code(self) -> int | None:
        """How it has ended: negative is a signal; None while it runs."""
        return self._process.exitcode

    def tell(self, directive: Membership | Release) -> None:
        """Give it a directive; one that has ended misses it."""
        with suppress(OSError):
            self._connection.send_bytes(directive.model_dump_json().encode())

    def words(self) -> list[Joined | Progress | Ended | Failed]:
        """What it has said since the last call."""
        words = []
        with suppress(EOFError, OSError):
            while self._connection.poll():
                words.append(WORDS.validate_json(self._connection.recv_bytes()))
        return words

    def kill(self) -> None:
        """Have it end at once, whatever it is doing."""
        self._process.kill()

    def close(self) -> None:
        """Give up what is held for a process that has ended."""
        self._connection.close()


def warm_up() -> int:
    """Start the fork server and wait until it has imported; return how many CUDA devices there are."""
    # A library that looks for devices when it is imported must not make a CUDA context: none survives a fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    _context.set_forkserver_preload(list(_PRELOADED))
    mine, theirs = _context.Pipe()
    process = _context.Process(target=_count_devices, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        return int(mine.recv_bytes())
    finally:
        process.join()
        mine.close()


def _count_devices(connection: "Connection[bytes, bytes]") -> None:
    import torch

    connection.send_bytes(str(torch.cuda.device_count()).encode())


def _work(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    # Imported here, so that the node's own process does without torch.
    from executors.elastic.worker import run_worker

    run_worker(order_json, connection)


@atexit.register
def _kill_all() -> None:
    # Before multiprocessing's own farewell, which would ask in vain, and wait.
    for process in list(_alive):
        process.kill()
