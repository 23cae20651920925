"""Reports of a job's runs on a node, to the cell and in the node's log; its runs in the node's journal."""

import logging
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from executors.gang.messages import Ended, Failed, Verdict
from executors.gang.node import GangNode
from schemas.base import Identifier, Record, RunId, Samples
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunStarted
from schemas.profiles import MeasuredSteps

_log = logging.getLogger(__name__)


class _ReportingNode(Protocol):
    """A node, or a process of it."""

    @property
    def cell(self) -> str: ...
    @property
    def node(self) -> str: ...


class _ReportedRun(Protocol):
    """A run, or its order."""

    @property
    def run_id(self) -> str: ...
    @property
    def job_id(self) -> str: ...


def run_fields(node: _ReportingNode, run: _ReportedRun, samples_done: int) -> dict[str, Any]:
    """Return the fields of every report of a run."""
    return {
        "cell": node.cell,
        "node": node.node,
        "run_id": run.run_id,
        "job_id": run.job_id,
        "samples_done": samples_done,
    }


@dataclass(frozen=True)
class RunStanding:
    """Progress of a run."""

    samples_done: int
    loss: float | None = None
    node_s: float = 0.0
    measured: MeasuredSteps | None = None


def mean_of(earlier: MeasuredSteps | None, later: MeasuredSteps | None) -> MeasuredSteps | None:
    """Return the mean of the steps of two reports of a generation, weighted by their numbers of steps; one of
    them may be None."""
    if earlier is None or later is None or earlier.samples_per_step != later.samples_per_step:
        return later or earlier
    steps = earlier.steps + later.steps

    def mean(before: float, now: float) -> float:
        return (earlier.steps * before + later.steps * now) / steps

    return later.model_copy(
        update={
            "steps": steps,
            "micro_batch_size": max(earlier.micro_batch_size, later.micro_batch_size),
            "step_s": mean(earlier.step_s, later.step_s),
            "exchange_s": mean(earlier.exchange_s, later.exchange_s),
            "loader_s": mean(earlier.loader_s or 0.0, later.loader_s or 0.0),
            "tokens_per_sample": mean(earlier.tokens_per_sample, later.tokens_per_sample),
        }
    )


@dataclass(frozen=True)
class RunReports:
    """Reports the runs of one job."""

    node: GangNode[Any]
    job_id: str

    def started(
        self,
        run_id: str,
        generation: int,
        samples_done: int,
        dataset_samples: int | None,
        **logged: object,
    ) -> None:
        """Report that all ranks of the node take part in the generation; `logged` are further fields of the
        log."""
        self.node.report(
            RunStarted(**self._fields(run_id), samples_done=samples_done, dataset_samples=dataset_samples)
        )
        self._write("run started", run_id, generation=generation, samples_done=samples_done, **logged)

    def progressed(self, run_id: str, standing: RunStanding, *, complete: bool = False) -> None:
        """Report the progress of a run; `complete` if it has ended here."""
        self.node.report(
            RunProgressed(
                **self._fields(run_id),
                samples_done=standing.samples_done,
                loss=standing.loss,
                node_s=standing.node_s,
                measured=None if complete else standing.measured,
                complete=complete,
            )
        )

    def over(self, run_id: str, standing: RunStanding, reason: str | None) -> None:
        """Report a run that has ended as ordered, or whose end another node reports."""
        self.progressed(run_id, standing, complete=True)
        self._write("run over", run_id, reason=reason, samples_done=standing.samples_done)

    def finished(self, run_id: str, ended: Ended) -> None:
        self.node.report(
            RunFinished(
                **self._fields(run_id),
                samples_done=ended.samples_done,
                loss=ended.loss,
                adapter_path=ended.adapter_path,
                adapter_digest=ended.adapter_digest,
            )
        )
        self._write("run finished", run_id, samples_done=ended.samples_done)

    def failed(self, run_id: str, samples_done: int, failure: Failed) -> None:
        """Report a run that cannot continue; `samples_done` are kept of it."""
        error, permanent = failure.error, failure.permanent
        self.node.report(
            RunFailed(**self._fields(run_id), samples_done=samples_done, error=error, permanent=permanent)
        )
        self._write("run failed", run_id, permanent=permanent, error=repr(error))

    def _fields(self, run_id: str) -> dict[str, Any]:
        return {"cell": self.node.cell, "node": self.node.node, "run_id": run_id, "job_id": self.job_id}

    def _write(self, event: str, run_id: str, **fields: object) -> None:
        rest = "".join(f" {name}={value}" for name, value in fields.items())
        _log.info("%s job=%s run=%s%s", event, self.job_id, run_id, rest)


class RunState(Record):
    """State of a run in the journal.

    Attributes:
        verdict: its ordered end; `none` if it was to continue.
    """

    job_id: Identifier
    run_id: RunId
    samples_done: Samples
    verdict: Verdict | Literal["none"]

    def end(self, cell: str, node: str) -> RunFailed | RunProgressed:
        """Return the report of its end, for the next process of the node."""
        fields = {"cell": cell, "node": node, **self.model_dump(exclude={"verdict"})}
        if self.verdict == "none":
            error = "the node was started again, and its ranks ended with the process before"
            return RunFailed(**fields, error=error, permanent=False)
        return RunProgressed(**fields, node_s=0.0, complete=True)
