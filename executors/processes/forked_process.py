"""A process that is forked from a server which has imported torch, and a pipe to it.

The fork server imports once, in a process without threads and without a CUDA context, so that a fork takes
some hundredths of a second instead of the five seconds of the imports.
"""

import ctypes
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pkgutil import resolve_name
from typing import Generic, TypeVar

from pydantic import BaseModel, TypeAdapter

from executors.processes.fork_server import PRELOADED, Surroundings, prepare, share
from schemas.service_base import begin_log

M = TypeVar("M")

_context = multiprocessing.get_context("forkserver")

_BEFORE_MULTIPROCESSING = 100

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


class ForkedProcess(Generic[M]):
    """A process of a node, seen from the node's own process."""

    def __init__(self, work: str, order: BaseModel, messages: TypeAdapter[M], name: str) -> None:
        """Start the process.

        Args:
            work: `module:function`, called in the process with the order as JSON and the process's end of the
                pipe. A name, so that the node's own process does not import torch.
            order: all values that the process needs at its start.
            messages: types of its messages.

        Raises:
            OSError: the machine has no room for another process.
            EOFError: the fork server has just ended.
        """
        self._types = messages
        self._connection, theirs = _context.Pipe()
        level = logging.getLogger().getEffectiveLevel()
        arguments = (work, order.model_dump_json(), theirs, level, Surroundings.of_this_process())
        self._process = _context.Process(target=_work, args=arguments, name=name, daemon=True)
        self._process.start()
        theirs.close()
        # Before multiprocessing's own finalizer, which would request an end without effect, and wait.
        self._finalizer = Finalize(None, self._process.kill, exitpriority=_BEFORE_MULTIPROCESSING)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None, "it was started"
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    @property
    def exit_code(self) -> int | None:
        """Its exit code: negative is a signal; None while it runs."""
        return self._process.exitcode

    def send(self, directive: BaseModel) -> None:
        """Send a directive; a process that has ended does not receive it."""
        with suppress(OSError):
            self._connection.send_bytes(directive.model_dump_json().encode())

    def messages(self) -> list[M]:
        """Return its messages since the last call."""
        received = []
        with suppress(EOFError, OSError):
            while self._connection.poll():
                received.append(self._types.validate_json(self._connection.recv_bytes()))
        return received

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Release the resources of a process that has ended."""
        self._finalizer.cancel()
        self._connection.close()


def warm_up(*modules: str) -> int:
    """Wait until there is a fork server that has imported torch, transformers, peft and these modules.

    It is the server from which this process was forked. If it was not forked, it starts a server.

    Returns:
        Number of CUDA devices.
    """
    prepare()
    share()
    _context.set_forkserver_preload([*PRELOADED, *modules])
    mine, theirs = _context.Pipe()
    process = _context.Process(target=_count_devices, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        return int(mine.recv_bytes())
    finally:
        process.join()
        mine.close()


def exit_status(code: int | None) -> str:
    """Return an exit code in words."""
    return f"signal {-code}" if code is not None and code < 0 else f"status {code}"


def _count_devices(connection: "Connection[bytes, bytes]") -> None:
    import torch

    connection.send_bytes(str(torch.cuda.device_count()).encode())


def _work(
    work: str,
    order_json: str,
    connection: "Connection[bytes, bytes]",
    log_level: int,
    surroundings: Surroundings,
) -> None:
    surroundings.enter()
    for number in (signal.SIGINT, signal.SIGTERM):
        # The node decides when its processes stop, even if a supervisor signals all processes.
        signal.signal(number, signal.SIG_IGN)
    begin_log(log_level)
    module, _, function = work.partition(":")
    run: Callable[[str, Connection[bytes, bytes]], None] = getattr(import_module(module), function)
    run(order_json, connection)


def serve_forked(
    function: str, arguments: tuple[object, ...], name: str, surroundings: Surroundings, stop_timeout_s: float
) -> None:
    """Call a function in this process, which ends at the latest with its parent.

    Args:
        function: `module:function`.
        name: name of the process in tools such as `ps`, by its first 15 bytes.
        stop_timeout_s: time from SIGTERM to SIGKILL, after the end of the parent.
    """
    # Not in the process group that Ctrl-C in a terminal signals.
    os.setsid()
    libc = ctypes.CDLL(None)
    # The exit status of this process reaches the deployment only through the server.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_NAME, name.encode())
    surroundings.enter()
    threading.Thread(target=_end_with_parent, args=(stop_timeout_s,), daemon=True).start()
    resolve_name(function)(*arguments)


def _end_with_parent(stop_timeout_s: float) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "this process was forked"
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(stop_timeout_s)
    os.kill(os.getpid(), signal.SIGKILL)
