"""What becomes of a job's runs on a node, said to the cell and in the node's log."""

import logging
from dataclasses import dataclass
from typing import Any

from executors.gang.messages import Ended, Failed, Verdict
from executors.gang.node import GangNode
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunStarted

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Standing:
    """How far a run is."""

    samples_done: int
    loss: float | None = None
    node_s: float = 0.0


@dataclass(frozen=True)
class RunReports:
    """Of the runs of one job."""

    place: GangNode[Any]
    job_id: str

    def started(
        self,
        run_id: str,
        generation: int,
        samples_done: int,
        dataset_samples: int | None,
        **logged: object,
    ) -> None:
        """All of the node's processes take part in the generation; the log says what else is to be known."""
        self.place.report(
            RunStarted(**self._of(run_id), samples_done=samples_done, dataset_samples=dataset_samples)
        )
        self._say("run started", run_id, generation=generation, samples_done=samples_done, **logged)

    def progressed(self, run_id: str, standing: Standing, *, complete: bool = False) -> None:
        """How far it is; `complete` if that is all."""
        self.place.report(
            RunProgressed(
                **self._of(run_id),
                samples_done=standing.samples_done,
                loss=standing.loss,
                node_s=standing.node_s,
                complete=complete,
            )
        )

    def over(self, run_id: str, standing: Standing, verdict: Verdict | None) -> None:
        """It has ended as it was to, or another node reports it."""
        self.progressed(run_id, standing, complete=True)
        self._say("run over", run_id, verdict=verdict, samples_done=standing.samples_done)

    def finished(self, run_id: str, answer: Ended) -> None:
        """The job is done, and one of the node's processes answers for it."""
        self.place.report(
            RunFinished(
                **self._of(run_id),
                samples_done=answer.samples_done,
                loss=answer.loss,
                adapter_path=answer.adapter_path,
                adapter_digest=answer.adapter_digest,
            )
        )
        self._say("run finished", run_id, samples_done=answer.samples_done)

    def failed(self, run_id: str, samples_done: int, failure: Failed) -> None:
        """It cannot go on; so much is left of it."""
        error, permanent = failure.error, failure.permanent
        self.place.report(
            RunFailed(**self._of(run_id), samples_done=samples_done, error=error, permanent=permanent)
        )
        self._say("run failed", run_id, permanent=permanent, error=repr(error))

    def _of(self, run_id: str) -> dict[str, Any]:
        return {"cell": self.place.cell, "node": self.place.node, "run_id": run_id, "job_id": self.job_id}

    def _say(self, what: str, run_id: str, **fields: object) -> None:
        rest = "".join(f" {name}={value}" for name, value in fields.items())
        _log.info("%s job=%s run=%s%s", what, self.job_id, run_id, rest)
