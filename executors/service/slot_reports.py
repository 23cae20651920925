"""What a node tells of the runs of one slot: to the cell, and in its own log."""

import logging
from collections.abc import Callable
from typing import Any

from executors.service.checkpoints import FinishedRun
from executors.service.failures import describe, is_permanent
from executors.service.runs import Run
from schemas.fleet import FleetEvent, RunFailed, RunFinished, RunProgressed, RunStarted

_log = logging.getLogger(__name__)


class SlotReports:
    """Fills in which cell, node and slot a report is about."""

    def __init__(self, cell: str, node: str, slot: int, report: Callable[[FleetEvent], None]) -> None:
        self._report = report
        self._slot = slot
        self._place: dict[str, Any] = {"cell": cell, "node": node, "slot": slot}

    def started(self, job_id: str, samples_done: int, dataset_samples: int | None = None) -> None:
        """A run begins; `dataset_samples` is what its data were counted to have, where they were read."""
        self._report(
            RunStarted(
                **self._place, job_id=job_id, samples_done=samples_done, dataset_samples=dataset_samples
            )
        )

    def progressed(self, run: Run, node_s: float, slot_complete: bool) -> None:
        """How far a run is, if it has taken a step: `node_s` is how much of the node it has had for it."""
        if run.loss is not None:
            self._report(
                RunProgressed(
                    **self._place,
                    job_id=run.job_id,
                    samples_done=run.samples_done,
                    loss=run.loss,
                    node_s=node_s,
                    slot_complete=slot_complete,
                )
            )

    def finished(self, finished: FinishedRun) -> None:
        """A job is trained, and its adapter published."""
        job_id = finished.task.job_id
        self._report(
            RunFinished(
                **self._place,
                job_id=job_id,
                samples_done=finished.samples_done,
                loss=finished.loss,
                adapter_path=finished.adapter.path,
                adapter_digest=finished.adapter.digest,
            )
        )
        self.say("run finished", job_id, samples_done=finished.samples_done, loss=finished.loss)

    def failed(self, job_id: str, samples_done: int, error: BaseException) -> None:
        """A run ends with an error, with so much of it kept."""
        permanent, text = is_permanent(error), describe(error)
        self._report(
            RunFailed(
                **self._place, job_id=job_id, samples_done=samples_done, error=text, permanent=permanent
            )
        )
        self.say("run failed", job_id, permanent=permanent, error=repr(text))

    def say(self, what: str, job_id: str, *, warning: bool = False, **fields: object) -> None:
        """A line for who runs the node."""
        rest = "".join(f" {name}={value}" for name, value in fields.items())
        level = logging.WARNING if warning else logging.INFO
        _log.log(level, "%s job=%s slot=%d%s", what, job_id, self._slot, rest)
