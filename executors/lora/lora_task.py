"""One LoRA fine-tuning task as planned, and its complete training state."""

from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from executors.lora.dataset import Cursor
from schemas.base import Identifier, PositiveSamples, RelativePath
from schemas.lora import Columns, LoraHyperparameters

LLAMA_TARGET_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
BYTES_PER_PARAMETER = 12
"""Size of a parameter with AdamW's two moments, in float32."""


class LoraTask(LoraHyperparameters):
    """One adapter and its training (LoRA: Hu et al. 2021, arXiv 2106.09685).

    The hyperparameters are those of the job: invalid ones are refused when the job is submitted.
    """

    job_id: Identifier
    """Unique within an engine."""
    dataset: RelativePath
    """JSONL file, relative to the dataset root."""
    columns: Columns | None = None
    """Names of the records' fields in the file; None if they are the names of their form."""
    total_samples: PositiveSamples
    """Sequences to train on before the task is done."""

    @property
    def scaling(self) -> float:
        """Factor ``alpha / rank`` on the low-rank update."""
        return self.alpha / self.rank


@dataclass(frozen=True)
class AdapterState:
    """An adapter between two steps, in host memory.

    Attributes:
        parameters: a flat float32 vector, ordered by its ``AdapterLayout``.
        first_moment: AdamW's running mean of the gradient, like ``parameters``.
        second_moment: AdamW's running mean of the squared gradient, like ``parameters``.
        optimizer_steps: number of updates.
    """

    parameters: Tensor
    first_moment: Tensor
    second_moment: Tensor
    optimizer_steps: int

    def pinned(self) -> Self:
        """Return the state with its vectors in pinned memory, from which a GPU copies without waiting."""
        return replace(
            self,
            parameters=self.parameters.pin_memory(),
            first_moment=self.first_moment.pin_memory(),
            second_moment=self.second_moment.pin_memory(),
        )


@dataclass(frozen=True)
class TaskState(AdapterState):
    """A task between two steps. Its random state is (task.seed, micro_batches): masks are drawn from these.

    Attributes:
        task: the task.
        micro_batches: micro-batches used; more than the updates if some had no finite gradient.
        samples_done: sequences used.
        cursor: place in the data.
        dataset_digest: digest of the data of the cursor.
    """

    task: LoraTask
    micro_batches: int
    samples_done: int
    cursor: Cursor
    dataset_digest: str

    @property
    def finished(self) -> bool:
        """Whether the task has used all its samples."""
        return self.samples_done >= self.task.total_samples
