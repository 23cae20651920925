"""One task while it is on the device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from executors.lora.adapter import AdapterLayout, TrainedAdapter, initial_parameters
from executors.lora.batch import TokenSequence
from executors.lora.dataset import Cursor, JsonlDataset, next_indices
from executors.lora.fused_layers import HeadUse, SiteAdapter
from executors.lora.lora_task import LoraTask, TaskState
from executors.lora.randomness import StreamedMasks, derive_seed
from executors.lora.segment_products import Rows
from executors.lora.tokens import Tokenizer


def new_state(task: LoraTask, layout: AdapterLayout, dataset_digest: str) -> TaskState:
    """Return the state of a task without progress."""
    return TaskState(
        task=task,
        parameters=initial_parameters(layout, task.seed),
        first_moment=torch.zeros(layout.size),
        second_moment=torch.zeros(layout.size),
        optimizer_steps=0,
        micro_batches=0,
        samples_done=0,
        cursor=Cursor(),
        dataset_digest=dataset_digest,
    )


class ResidentTask:
    """A task's adapter, optimizer and data on one device, none of which other tasks share.

    Attributes:
        task: the task.
        layout: layout of its adapter.
        samples_done: sequences used so far.
        gradient_norm: L2 norm of the last step's gradient before clipping; 0 before the first step. If it is
            not finite, there was no update.
        step_tokens: tokens of the last step's micro-batch; 0 before the first step.
    """

    def __init__(
        self, state: TaskState, layout: AdapterLayout, dataset: JsonlDataset, device: torch.device
    ) -> None:
        """Copy ``state`` to the device.

        Raises:
            ValueError: the state does not fit the layout, or the data has changed since.
        """
        if state.dataset_digest != dataset.digest:
            raise ValueError(f"{state.task.job_id}: {dataset.name} has changed since the task was suspended")
        self.task = state.task
        self.layout = layout
        self.samples_done = state.samples_done
        self.gradient_norm = 0.0
        self.step_tokens = 0
        self._micro_batches = state.micro_batches
        self._cursor = state.cursor
        self._dataset = dataset
        self._upcoming_sequences: list[TokenSequence] | None = None
        self._adapter = TrainedAdapter(state.task, layout, state, device)
        self._masks = StreamedMasks(torch.Generator(device))

    @property
    def finished(self) -> bool:
        return self.samples_done >= self.task.total_samples

    def next_micro_batch(self, tokenizer: Tokenizer) -> list[TokenSequence]:
        """Return the sequences of the next step; the cursor moves only at the end of the step.

        The last micro-batch may be smaller, so that no sample beyond the total is used.
        """
        if self._upcoming_sequences is None:
            indices, _ = self._upcoming()
            length = self.task.sequence_length
            self._upcoming_sequences = [
                self._dataset.tokenized(index, tokenizer, length) for index in indices
            ]
        return self._upcoming_sequences

    def site_adapter(self, site: str, rows: Rows) -> SiteAdapter:
        """Return the adapter at one layer for the rows ``rows`` of a batch."""
        return self._adapter.site_adapter(site, rows, self._masks)

    def head_uses(self, loss_rows: int) -> Sequence[HeadUse]:
        """Return the task's head for its rows that bear loss."""
        return [(self._adapter.heads[0], loss_rows)]

    @property
    def held(self) -> Sequence[Tensor]:
        """Tensors on the device between steps: parameters and gradient first."""
        parameters, first_moment, second_moment, _ = self._adapter.tensors
        return parameters, self._adapter.gradient, first_moment, second_moment

    @property
    def dataset_records(self) -> int:
        return len(self._dataset)

    def begin_step(self, tokens: int) -> None:
        """Clear the gradient and set the masks of this step, which depend only on its number."""
        self.step_tokens = tokens
        self._adapter.clear()
        self._masks.generator.manual_seed(derive_seed(self.task.seed, "dropout", self._micro_batches))

    def finish_step(self) -> None:
        """Clip this adapter's gradient, update the adapter and advance in the data.

        There is no update if the gradient is not finite.
        """
        self.gradient_norm = self._adapter.update()
        indices, self._cursor = self._upcoming()
        self._upcoming_sequences = None
        self.samples_done += len(indices)
        self._micro_batches += 1

    def gradients(self) -> dict[str, Tensor]:
        """Return copies of the gradients used in the last step, by the matrices' names."""
        return {name: g.clone() for name, g in self.layout.split(self._adapter.gradient).items()}

    def state(self) -> TaskState:
        """Copy the task's state to host memory, pinned if the device is a GPU, so that it returns fast."""
        return TaskState(
            **vars(self._adapter.state()),
            task=self.task,
            micro_batches=self._micro_batches,
            samples_done=self.samples_done,
            cursor=self._cursor,
            dataset_digest=self._dataset.digest,
        )

    def close(self) -> None:
        self._dataset.close()

    def _upcoming(self) -> tuple[list[int], Cursor]:
        count = min(self.task.batch_size, self.task.total_samples - self.samples_done)
        return next_indices(len(self._dataset), self.task.seed, self._cursor, count)
