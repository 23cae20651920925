"""A service that is forked from a server which has imported its libraries."""

import ctypes
import multiprocessing
import os
import signal
import threading
import time
from pkgutil import resolve_name

from executors.processes.fork_server import Surroundings

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


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
