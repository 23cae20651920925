"""Reports of a run, to the cell and in the node's log."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport

_log = logging.getLogger(__name__)


class IdentifiedRun(Protocol):
    """A run, or its order."""

    @property
    def run_id(self) -> str: ...
    @property
    def job_id(self) -> str: ...


@dataclass(frozen=True)
class RunReports:
    """Reports of one run on one node.

    Attributes:
        send: sends a report to the cell, or from a rank to its node.
    """

    cell: str
    node: str
    run: IdentifiedRun
    send: Callable[[RunReport], None]

    def report(self, kind: type[RunReport], samples_done: int, **fields: Any) -> None:
        """Send a report; `fields` are those of its kind."""
        run_id, job_id = self.run.run_id, self.run.job_id
        place = {"cell": self.cell, "node": self.node, "run_id": run_id, "job_id": job_id}
        self.send(kind(**place, samples_done=samples_done, **fields))

    def over(self, samples_done: int, reason: str | None, **fields: Any) -> None:
        """Report a run that has ended as ordered, or whose end another node reports."""
        self.report(RunProgressed, samples_done, complete=True, **({"node_s": 0.0} | fields))
        self.log("run over", reason=reason, samples_done=samples_done)

    def finished(
        self, samples_done: int, loss: float | None, adapter_path: str | None, adapter_digest: str | None
    ) -> None:
        """Report a job that is done, with its published adapter if it has one."""
        result = {"adapter_path": adapter_path, "adapter_digest": adapter_digest}
        self.report(RunFinished, samples_done, loss=loss, **result)
        self.log("run finished", samples_done=samples_done, loss=loss)

    def failed(self, samples_done: int, error: str, permanent: bool, **fields: Any) -> None:
        """Report a run that cannot continue; `samples_done` are kept of it."""
        self.report(RunFailed, samples_done, error=error, permanent=permanent, **fields)
        self.log("run failed", permanent=permanent, error=repr(error))

    def log(self, event: str, level: int = logging.INFO, **fields: object) -> None:
        """Write a line about the run."""
        rest = "".join(f" {name}={value}" for name, value in fields.items())
        _log.log(level, "%s job=%s run=%s%s", event, self.run.job_id, self.run.run_id, rest)
