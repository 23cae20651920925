"""A node with one runner, in this process, for the parts that time real training."""

import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from executors.node.process import SystemClock
from executors.node.room import DiskSpace
from executors.node.runner import RunnerContext
from executors.node.settings import ExecutorSettings
from schemas.fleet import FleetEvent, RunFailed

NODE = "n1"
_WORDS = ("def", "class", "return", "self", "import", "value", "error", "raise", "range", "lambda")
_TIMEOUT_S = 120.0


def node_context(folder: Path, base_model: str, reports: list[FleetEvent]) -> RunnerContext:
    """Return the context of a runner that writes into a folder and appends its reports to a list."""
    settings = ExecutorSettings(
        cell="c",
        node=NODE,
        base_model=base_model,
        output_root=folder / "output",
        state_root=folder / "state",
    )
    return RunnerContext(
        settings, reports.append, DiskSpace({"folder": folder}, least_free_bytes=0), SystemClock()
    )


class NodeRunner(Protocol):
    """A runner that can be advanced."""

    def advance(self) -> object: ...


def advance_until(
    runner: NodeRunner, reports: Sequence[FleetEvent], condition: Callable[[], bool], poll_s: float
) -> None:
    """Advance a runner until a condition holds.

    Raises:
        RuntimeError: a run fails, or the condition does not hold in time.
    """
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not condition():
        runner.advance()
        failed = [report.error for report in reports if isinstance(report, RunFailed)]
        if failed or time.monotonic() > deadline_s:
            raise RuntimeError(f"the runner failed: {failed or 'the condition does not hold in time'}")
        time.sleep(poll_s)


class LoggedSeconds(logging.Handler):
    """Collects the last arguments of log records with a given beginning, in `seen`."""

    def __init__(self, logger: str, begin: str, count: int) -> None:
        super().__init__()
        self.seen: list[tuple[float, ...]] = []
        self._begin, self._count = begin, count
        self._logger = logging.getLogger(logger)
        self._level = self._logger.level
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the arguments of a record with the beginning."""
        if record.msg.startswith(self._begin) and isinstance(record.args, tuple):
            self.seen.append(tuple(float(str(each)) for each in record.args[-self._count :]))

    def close(self) -> None:
        """Restore the logger."""
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
        super().close()


def write_dataset(path: Path, records: int, seed: int) -> None:
    """Write records of 40 random words each."""
    draw = random.Random(seed)
    lines = (json.dumps({"text": " ".join(draw.choices(_WORDS, k=40))}) + "\n" for _ in range(records))
    path.write_text("".join(lines))
