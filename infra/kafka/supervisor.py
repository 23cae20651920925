"""Supervisor of a child process that must not outlive the process that started it.

It is started as a separate script, by path and with the standard library alone. It stops the child when its
standard input closes or its owner dies for any reason, including SIGKILL, even while other children of the
owner still hold a copy of the pipe. If the supervisor itself is killed, the kernel kills the child:
PR_SET_PDEATHSIG is tied to the thread that forked, and the supervisor has only one.

    supervisor.py STOP_TIMEOUT_S COMMAND...

Standard output: the child's process id, in one line. The child gets every other inherited descriptor.
"""

import ctypes
import os
import selectors
import signal
import subprocess
import sys

KILL = b"K"
"""Byte on standard input that kills the child at once; an end of file stops it in order."""

_PR_SET_PDEATHSIG = 1
_STDIN = 0


def supervise(stop_timeout_s: float, command: list[str]) -> int:
    """Run `command` until it exits or is stopped, and return its exit status."""
    owner = os.pidfd_open(os.getppid())
    child = _start(command)
    child_exit = os.pidfd_open(child.pid)
    sys.stdout.write(f"{child.pid}\n")
    sys.stdout.flush()
    with selectors.DefaultSelector() as selector:
        for descriptor in (_STDIN, owner, child_exit):
            selector.register(descriptor, selectors.EVENT_READ)
        ready = {key.fd for key, _ in selector.select()}
    if child_exit not in ready:
        if _STDIN in ready and os.read(_STDIN, 1) == KILL:
            child.kill()
        else:
            _stop(child, stop_timeout_s)
    return child.wait()


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None, use_errno=True)
    supervisor = os.getpid()

    def die_with_supervisor() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:  # the supervisor died before the line above
            os._exit(1)

    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        close_fds=False,
        preexec_fn=die_with_supervisor,
    )


def _stop(child: subprocess.Popen[bytes], timeout_s: float) -> None:
    child.terminate()
    try:
        child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    status = supervise(float(sys.argv[1]), sys.argv[2:])
    sys.exit(status if status >= 0 else 128 - status)
