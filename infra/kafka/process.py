"""Child processes that end with their parent, with a bounded rate of restarts."""

import os
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from infra.kafka import supervisor
from schemas.interpreters import python_command
from schemas.service_base import OTHERS

MOST_RESTARTS = 5
RESTART_WINDOW_S = 60.0
_AS_HERE = -1
"""Value of `umask` that leaves a child the umask of this process."""


class Restarts:
    """Bound on the restarts within a time window."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=MOST_RESTARTS)

    def allow(self) -> bool:
        """Count a restart, and return True; return False if it would be too many."""
        now_s = time.monotonic()
        if len(self._recent) == MOST_RESTARTS and now_s - self._recent[0] < RESTART_WINDOW_S:
            return False
        self._recent.append(now_s)
        return True


# Time that the supervisor needs, after the command's stop timeout, to kill it and to end.
_KILL_MARGIN_S = 5


class SupervisedProcess:
    """Runs `command` under a supervisor, in a session of its own that Ctrl-C in the terminal does not reach.

    Its output goes to `console_path`, which is emptied first unless `keep_console`. `inherited` is a file
    descriptor for the command, `environment` replaces the environment of this process. If `private`, the
    files that the command makes are for their owner alone.
    """

    def __init__(
        self,
        command: list[str],
        *,
        working_dir: Path,
        console_path: Path,
        stop_timeout_s: float,
        inherited: int | None = None,
        environment: Mapping[str, str] | None = None,
        keep_console: bool = False,
        private: bool = False,
    ) -> None:
        self._stop_timeout_s = stop_timeout_s
        rights = partial(os.open, mode=0o600 if private else 0o666)
        with open(console_path, "ab" if keep_console else "wb", opener=rights) as console:
            self._supervisor = subprocess.Popen(
                python_command("-I", supervisor.__file__, str(stop_timeout_s), *command),
                cwd=working_dir,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=console,
                start_new_session=True,
                pass_fds=[] if inherited is None else [inherited],
                env=environment,
                umask=OTHERS if private else _AS_HERE,
            )
        assert self._supervisor.stdout is not None
        with self._supervisor.stdout as pid_line:
            self._pid = int(pid_line.readline() or 0) or None

    @property
    def pid(self) -> int | None:
        """Process id of the command; None once it has ended."""
        return self._pid if self._supervisor.poll() is None else None

    @property
    def exit_status(self) -> int | None:
        """Exit status of the command, 128 + n after signal n; None while it runs."""
        return self._supervisor.poll()

    def stop(self) -> None:
        """Stop the command, kill it after the timeout or an interrupt, and return when it has ended."""
        self._end(b"", self._stop_timeout_s + _KILL_MARGIN_S)

    def kill(self) -> None:
        """Kill the command and return when it has ended."""
        self._end(supervisor.KILL, _KILL_MARGIN_S)

    def _end(self, request: bytes, timeout_s: float) -> None:
        assert self._supervisor.stdin is not None
        if not self._supervisor.stdin.closed:
            with suppress(BrokenPipeError), self._supervisor.stdin as control:
                control.write(request)
        try:
            self._supervisor.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._kill_now()
        except KeyboardInterrupt:  # an interrupt ends the wait for an orderly stop
            self._kill_now()
            raise

    def _kill_now(self) -> None:
        # The kernel kills the command with its supervisor.
        self._supervisor.kill()
        self._supervisor.wait()
