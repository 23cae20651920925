"""Commands of `millrace` in a home of their own, and the processor time that they and their children take."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from schemas.interpreters import python_command

_LOOK_EVERY_S = 0.05
_STOP_S = 60.0


def millrace(*arguments: str) -> list[str]:
    """Return the command line of a command of ours."""
    return python_command("-m", "infra.cli", *arguments)


class Home:
    """Data and caches of one newcomer: at first there is nothing in them."""

    def __init__(self, folder: Path) -> None:
        """Describe a home in a folder."""
        self.folder = folder

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a command. Those of this process that name a cluster do not count."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
        return {
            **kept,
            "MILLRACE_DATA_DIR": str(self.folder / "data"),
            "MILLRACE_CACHE_DIR": str(self.folder / "cache"),
            "NUMBA_CACHE_DIR": str(self.folder / "kernels"),
        }


class Running:
    """A command that runs, with all processes that it has started."""

    def __init__(self, home: Home, *arguments: str) -> None:
        """Start it, with its output in the home."""
        self.output = home.folder / f"{arguments[0]}.log"
        self.started_s = time.monotonic()
        with self.output.open("w") as output:
            self._process = subprocess.Popen(
                millrace(*arguments),
                env=home.environment,
                cwd=home.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def await_line(self, part: str, limit_s: float) -> None:
        """Return when its output has a line with this part.

        Raises:
            TimeoutError: it does not come in time.
            RuntimeError: the command ends before.
        """
        while part not in self.output.read_text():
            if self._process.poll() is not None:
                raise RuntimeError(f"ended with status {self._process.returncode}: {self.output.read_text()}")
            if time.monotonic() - self.started_s > limit_s:
                raise TimeoutError(f"no line with {part!r} within {limit_s:g} s: {self.output.read_text()}")
            time.sleep(_LOOK_EVERY_S)

    def cpu_s(self, part: str) -> float:
        """Processor time of its processes that run and have this part in their command lines."""
        total_s = 0.0
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has ended just now
                if part in " ".join(process.cmdline()):
                    times = process.cpu_times()
                    total_s += times.user + times.system
        return total_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(_STOP_S)


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep one core busy for the length of the block."""
    with subprocess.Popen(python_command("-c", "while True: pass")) as spinning:
        try:
            yield
        finally:
            spinning.kill()
