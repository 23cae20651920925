"""One service of a deployment: a process that is restarted when it dies."""

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from infra.errors import CommandError
from infra.kafka.process import Restarts, SupervisedProcess
from schemas.service_base import EXIT_UNANSWERED, EXIT_UNFIT

LARGEST_LOG_BYTES = 10 * 1024 * 1024
KEPT_LOGS = 3
"""Number of older parts of a service's log that are kept; `<name>.log.1` is the newest."""
STOP_TIMEOUT_S = 25.0
"""A little more than the timeout within which services stop in order."""
_LOG_START = re.compile(r"^\S+ \S+ [A-Z]+ [\w.]+: ")
"""Time, level and logger, as of `schemas.service_base.PlainFormatter`."""


class ServiceProcess(Protocol):
    """A process that dies with this one."""

    @property
    def pid(self) -> int | None:
        """Process id; None once it has ended."""

    @property
    def exit_status(self) -> int | None:
        """Exit status, 128 + n after signal n; None while it runs."""

    def stop(self) -> None:
        """Stop it in order, kill it after a timeout, and return when it has ended."""


Launch = Callable[[Path], ServiceProcess]
"""Function that starts a process whose output is appended to the log file."""


def command(arguments: Sequence[str], environment: Mapping[str, str], inherited: int | None = None) -> Launch:
    """Return a function that runs a command.

    Args:
        environment: Variables in addition to those of this process.
        inherited: File descriptor that the process inherits.
    """

    def launch(log_path: Path) -> ServiceProcess:
        return SupervisedProcess(
            list(arguments),
            working_dir=Path.cwd(),
            console_path=log_path,
            stop_timeout_s=STOP_TIMEOUT_S,
            environment={**os.environ, **environment},
            keep_console=True,
            inherited=inherited,
        )

    return launch


class Service:
    """Keeps a process running."""

    def __init__(self, name: str, launch: Launch, log_folder: Path) -> None:
        self.name = name
        self.log_path = log_folder / f"{name}.log"
        self._launch = launch
        self._process: ServiceProcess | None = None
        self._restarts = Restarts()
        self._restart_is_allowed = False
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """Process id of the service itself; None when it does not run."""
        return self._process.pid if self._process else None

    @property
    def exit_status(self) -> int | None:
        """Status with which it has ended, 128 + n after signal n; None while it runs or was not started."""
        return self._process.exit_status if self._process else None

    def start(self) -> None:
        self.rotate_log()
        self._restart_is_allowed = False
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._process = self._launch(self.log_path)

    def keep_running(self) -> bool:
        """Restart the process if it has died; return whether it died for another reason than a broker that
        does not answer. Such ends are not counted: the broker may be down for any time.

        Raises:
            CommandError: its status states that a restart does not help, or it keeps dying.
        """
        status = self.exit_status
        if status is None:
            self.rotate_log()
            return False
        if status == EXIT_UNFIT and not self._restart_is_allowed:
            raise CommandError(f"{self.name} cannot run: {self.last_line()}")
        if status == EXIT_UNANSWERED:
            self.start()
            return False
        if not self._restarts.allow():
            raise CommandError(f"{self.name} keeps dying (status {status}): {self.last_line()}")
        self.start()
        return True

    def rotate_log(self) -> None:
        """Copy a large log, and empty it. The service keeps the file open; lines that it writes between
        copying and emptying are lost."""
        if not self.log_path.exists() or self.log_path.stat().st_size < LARGEST_LOG_BYTES:
            return
        for number in range(KEPT_LOGS, 1, -1):
            with suppress(FileNotFoundError):
                self._older_log(number - 1).replace(self._older_log(number))
        shutil.copy(self.log_path, self._older_log(1))
        os.truncate(self.log_path, 0)
        self._log_start = 0

    def _older_log(self, number: int) -> Path:
        return self.log_path.with_name(f"{self.log_path.name}.{number}")

    def allow_restart(self) -> None:
        """Reset the count of deaths, and let the next `keep_running` restart it regardless of its status."""
        self._restarts = Restarts()
        self._restart_is_allowed = True

    def check_running(self) -> None:
        """Check that the process runs.

        Raises:
            CommandError: the process has ended.
        """
        if self._process is None or self._process.exit_status is not None:
            raise CommandError(f"{self.name} has ended: {self.last_line()}")

    def stop(self) -> None:
        """Stop the process in order, or kill it after a timeout."""
        if self._process:
            self._process.stop()
            self._process = None

    def last_line(self) -> str:
        """Return the last line of its log since its last start, without time, level and logger."""
        lines = [line for line in self._log().splitlines() if line.strip()]
        return _LOG_START.sub("", lines[-1]) if lines else f"it printed nothing, see {self.log_path}"

    def _log(self) -> str:
        try:
            with self.log_path.open("rb") as log:
                log.seek(self._log_start)
                return log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
