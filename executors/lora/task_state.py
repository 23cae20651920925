"""All that a task has come to: what is parked when it leaves the device, and what a checkpoint holds."""

from dataclasses import dataclass

from torch import Tensor

from executors.lora.dataset import Cursor
from executors.lora.task import LoraTask


@dataclass(frozen=True)
class TaskState:
    """A task between two steps. Its random state is (task.seed, micro_batches): masks are drawn from these.

    Attributes:
        task: what is trained.
        parameters: the adapter as a flat float32 vector in host memory, ordered by its ``AdapterLayout``.
        first_moment: AdamW's running mean of the gradient, like ``parameters``.
        second_moment: AdamW's running mean of the squared gradient, like ``parameters``.
        optimizer_steps: updates made.
        micro_batches: micro-batches used; more than the updates if some had no finite gradient.
        samples_done: sequences used.
        cursor: place in the data.
        dataset_digest: content of the data that the cursor points into.
    """

    task: LoraTask
    parameters: Tensor
    first_moment: Tensor
    second_moment: Tensor
    optimizer_steps: int
    micro_batches: int
    samples_done: int
    cursor: Cursor
    dataset_digest: str

    @property
    def finished(self) -> bool:
        """Whether the task has used all its samples."""
        return self.samples_done >= self.task.total_samples
