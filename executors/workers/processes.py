"""Worker processes of a node, forked from a server that has imported torch and has nothing else.

multiprocessing's fork server imports once, in a process without threads and without a CUDA context, so that a
worker begins in some hundredths of a second instead of the ten seconds that the imports take.
"""

import atexit
import logging
import multiprocessing
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, TypeAdapter

from schemas.services import begin_log

_PRELOADED = (
    "torch",
    "torch.distributed",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "peft",
)

W = TypeVar("W")

_context = multiprocessing.get_context("forkserver")
_alive: "weakref.WeakSet[WorkerProcess[Any]]" = weakref.WeakSet()


class WorkerProcess(Generic[W]):
    """A worker process, as its node sees it."""

    def __init__(self, work: str, order: BaseModel, words: TypeAdapter[W], name: str) -> None:
        """Start it.

        Args:
            work: `module:function`, called in the process with the order as JSON and the process's end of the
                pipe. A name, so that the node's own process imports no torch.
            order: all that the process needs to know when it begins.
            words: what it may say.

        Raises:
            OSError: the machine has no room for another process.
            EOFError: the fork server has ended just now.
        """
        self._words = words
        self._connection, theirs = _context.Pipe()
        level = logging.getLogger().getEffectiveLevel()
        self._process = _context.Process(
            target=_work, args=(work, order.model_dump_json(), theirs, level), name=name, daemon=True
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

    def tell(self, directive: BaseModel) -> None:
        """Give it a directive; one that has ended misses it."""
        with suppress(OSError):
            self._connection.send_bytes(directive.model_dump_json().encode())

    def words(self) -> list[W]:
        """What it has said since the last call."""
        words = []
        with suppress(EOFError, OSError):
            while self._connection.poll():
                words.append(self._words.validate_json(self._connection.recv_bytes()))
        return words

    def kill(self) -> None:
        """Have it end at once, whatever it is doing."""
        self._process.kill()

    def close(self) -> None:
        """Give up what is held for a process that has ended."""
        self._connection.close()


def warm_up(*modules: str) -> int:
    """Start the fork server and wait until it has imported torch, transformers, peft and these modules.

    Returns:
        how many CUDA devices there are.
    """
    # A library that looks for devices when it is imported must not make a CUDA context: none survives a fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    _context.set_forkserver_preload([*_PRELOADED, *modules])
    mine, theirs = _context.Pipe()
    process = _context.Process(target=_count_devices, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        return int(mine.recv_bytes())
    finally:
        process.join()
        mine.close()


def room_for(device: str, gpus: int | None, cuda_devices: int) -> int:
    """How many worker processes a node has room for: as set, or one for each CUDA device, or CPU core.

    Raises:
        ValueError: the machine has fewer CUDA devices.
    """
    if device == "cpu":
        return gpus or os.cpu_count() or 1
    if cuda_devices < (gpus or 1):
        raise ValueError(f"{gpus or 1} CUDA devices are wanted, the machine has {cuda_devices}")
    return gpus or cuda_devices


def exit_status(code: int | None) -> str:
    """How a process has ended, in words."""
    return f"signal {-code}" if code is not None and code < 0 else f"status {code}"


def take_device(gpu: int) -> None:
    """Have this process see one of the machine's CUDA devices only, before it uses any."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu) if visible is None else visible.split(",")[gpu]


def _count_devices(connection: "Connection[bytes, bytes]") -> None:
    import torch

    connection.send_bytes(str(torch.cuda.device_count()).encode())


def _work(work: str, order_json: str, connection: "Connection[bytes, bytes]", log_level: int) -> None:
    begin_log(log_level)
    module, _, function = work.partition(":")
    run: Callable[[str, Connection[bytes, bytes]], None] = getattr(import_module(module), function)
    run(order_json, connection)


@atexit.register
def _kill_all() -> None:
    # Before multiprocessing's own farewell, which would ask in vain, and wait.
    everyone: Sequence[WorkerProcess[Any]] = list(_alive)
    for process in everyone:
        process.kill()
