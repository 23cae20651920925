"""A job's part of a slot, while it is on this node."""

from dataclasses import dataclass

from executors.lora.task import LoraTask
from schemas.commands import RunOrder

MAX_LOSS = 1e9
"""What a report can carry."""


@dataclass
class Run:
    """An order that is being carried out."""

    order: RunOrder
    goal_samples: int
    """Where its part of the slot ends: at its quota or at the end of its work.

    It ends with the first whole batch from there on, so that a job has the same batches however its work is
    cut into slots. Only the last batch of all is cut, to end at `work_samples` exactly.
    """
    samples_done: int
    saved_samples: int
    """As the newest checkpoint has it."""
    base_samples: int
    """What was done when the slot began."""
    loss: float | None
    """Of the last step, in this slot or before; None before the first of all."""
    saved_s: float
    unsaved_steps: int = 0

    @property
    def job_id(self) -> str:
        """The job."""
        return self.order.job_id

    def advance(self, samples_done: int, loss: float) -> None:
        """Count a step."""
        self.samples_done = samples_done
        self.loss = min(loss, MAX_LOSS)
        self.unsaved_steps += 1

    def mark_saved(self, now_s: float) -> None:
        """Note that a checkpoint holds all that is done."""
        self.saved_samples, self.saved_s, self.unsaved_steps = self.samples_done, now_s, 0


def task_of(order: RunOrder) -> LoraTask:
    """Return the order as the engine's task; the same for every slot and node of the job."""
    return LoraTask(
        job_id=order.job_id,
        dataset=order.dataset.path,
        total_samples=order.work_samples,
        **dict(order.hyperparameters),
    )
