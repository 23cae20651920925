"""A job's run on this node."""

from dataclasses import dataclass

from executors.lora.lora_task import LoraTask
from executors.node.losses import reportable
from schemas.lora_commands import RunOrder


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
