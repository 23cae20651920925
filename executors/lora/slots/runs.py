"""A job's run on this node, and its reports to the cell and the log."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from executors.lora.delivered import DataDifferError
from executors.lora.faults import described, is_permanent
from executors.lora.slots.checkpoints import FinishedRun
from executors.lora.task import LoraTask
from executors.node.losses import reportable
from schemas.fleet import FleetEvent, RunFailed, RunFinished, RunProgressed, RunStarted
from schemas.lora_commands import RunOrder, SlotAssigned
from schemas.profiles import MeasuredSteps

_log = logging.getLogger(__name__)


@dataclass
class SlotRun:
    """An order that is being carried out."""

    order: RunOrder
    goal_samples: int
    """Samples at the end of its part of the slot: by its quota or the end of its work.

    It ends with the first whole batch at or after that, so that a job's batches do not depend on its slots.
    Only the last batch is cut, to end at `work_samples` exactly.
    """
    samples_done: int
    saved_samples: int
    """Samples in the newest checkpoint."""
    base_samples: int
    """Samples done when the slot began."""
    loss: float | None
    """Loss of the last step, in this slot or before; None before the first of all."""
    saved_s: float
    unsaved_steps: int = 0

    @property
    def job_id(self) -> str:
        return self.order.job_id

    def advance(self, samples_done: int, loss: float) -> None:
        self.samples_done = samples_done
        self.loss = reportable(loss)
        self.unsaved_steps += 1

    def mark_saved(self, now_s: float) -> None:
        """Record that a checkpoint covers all samples done."""
        self.saved_samples, self.saved_s, self.unsaved_steps = self.samples_done, now_s, 0


def task_of(order: RunOrder) -> LoraTask:
    """Return the order as the engine's task; the same for every slot and node of the job."""
    return LoraTask(
        job_id=order.job_id,
        dataset=order.dataset.path,
        columns=order.dataset.columns,
        total_samples=order.work_samples,
        **dict(order.hyperparameters),
    )


class SlotRunReports:
    """Reports of runs, with their cell, node and run."""

    def __init__(self, cell: str, assignment: SlotAssigned, report: Callable[[FleetEvent], None]) -> None:
        self._report = report
        self._slot = assignment.slot
        self._places: dict[str, dict[str, Any]] = {
            order.job_id: {
                "cell": cell,
                "node": assignment.node,
                "run_id": order.run_id,
                "job_id": order.job_id,
            }
            for order in assignment.runs
        }

    def started(self, job_id: str, samples_done: int, dataset_samples: int | None = None) -> None:
        """Report the start of a run; `dataset_samples` is the number of records in its data, if it was
        read."""
        self._report(
            RunStarted(**self._places[job_id], samples_done=samples_done, dataset_samples=dataset_samples)
        )

    def progressed(
        self,
        run: SlotRun,
        node_s: float,
        memory_gib: float | None,
        measured: MeasuredSteps | None,
        complete: bool,
    ) -> None:
        """Report the progress of a run, if it has done a step: `node_s` is its time on the node, and
        `memory_gib` its memory and `measured` its steps alone, if they were measured."""
        if run.loss is not None:
            self._report(
                RunProgressed(
                    **self._places[run.job_id],
                    samples_done=run.samples_done,
                    loss=run.loss,
                    node_s=node_s,
                    memory_gib=memory_gib,
                    measured=measured,
                    complete=complete,
                )
            )

    def finished(self, finished: FinishedRun) -> None:
        """Report a trained job, with its published adapter."""
        job_id = finished.task.job_id
        self._report(
            RunFinished(
                **self._places[job_id],
                samples_done=finished.samples_done,
                loss=finished.loss,
                adapter_path=finished.adapter.path,
                adapter_digest=finished.adapter.digest,
            )
        )
        self.log("run finished", job_id, samples_done=finished.samples_done, loss=finished.loss)

    def failed(self, job_id: str, samples_done: int, error: BaseException, memory_gib: float | None) -> None:
        """Report a run that ends with an error, with its kept samples and, if measured, its memory."""
        text, permanent = described(error), is_permanent(error)
        self._report(
            RunFailed(
                **self._places[job_id],
                samples_done=samples_done,
                error=text,
                permanent=permanent,
                cause="data_differ" if isinstance(error, DataDifferError) else None,
                memory_gib=memory_gib,
            )
        )
        self.log("run failed", job_id, permanent=permanent, error=repr(text))

    def log(self, what: str, job_id: str, *, warning: bool = False, **fields: object) -> None:
        rest = "".join(f" {name}={value}" for name, value in fields.items())
        level = logging.WARNING if warning else logging.INFO
        _log.log(level, "%s job=%s slot=%d%s", what, job_id, self._slot, rest)
