"""The engine: one forward and backward over the shared base for every task on the device."""

import ctypes
import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from executors.lora.adapted_pass import adapters_placed, loss_logits, precision
from executors.lora.batch import PackedBatch, pack
from executors.lora.dataset import DatasetRoot, RecentIndices
from executors.lora.delivered import open_delivered
from executors.lora.faults import UpdateError, raise_if_device_is_lost
from executors.lora.lora_task import LoraTask, TaskState
from executors.lora.records import with_columns
from executors.lora.resident import ResidentTask, new_state
from executors.lora.shared_base import SharedBase
from schemas.lora import Delivery

BYTES_PER_GIB = 2**30

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEEP_UP_TO_BYTES = 1 << 30


@dataclass
class StepMemory:
    """Memory of a step, set at its end, also after a failure."""

    bytes: int = 0

    @property
    def gib(self) -> float:
        return self.bytes / BYTES_PER_GIB


@contextmanager
def measured(device: torch.device, weights: Iterable[Tensor], own_bytes: int) -> Iterator[StepMemory]:
    """Measure the step of one task in the block.

    On CUDA, it is the peak of torch's allocations beyond those before. Elsewhere, it is the size of the
    tensors that autograd keeps for the backward pass, each storage once: an exact count, the same each time.

    Args:
        weights: weights of the base model and of adapters, which are held without the step, too.
        own_bytes: memory that the task holds all the time.
    """
    memory = StepMemory(own_bytes)
    if device.type == "cuda":
        held_bytes = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        try:
            yield memory
        finally:
            memory.bytes += max(torch.cuda.max_memory_allocated(device) - held_bytes, 0)
        return
    seen = {weight.untyped_storage().data_ptr() for weight in weights}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        # Tensors that autograd keeps live until the backward pass, so no two storages have one address.
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            memory.bytes += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield memory


def prepare(device: torch.device) -> None:
    """Let the device's libraries allocate their one-time memory for both directions, before a task's step is
    measured."""
    if device.type != "cuda":
        return
    weight = torch.ones(64, 64, device=device, requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        (torch.ones(64, 64, device=device) @ weight).sum().backward()
    torch.cuda.synchronize(device)


def keep_freed_memory() -> None:
    """Keep freed memory in this process for its next step, instead of returning it to the system.

    By default, glibc unmaps large blocks when they are freed. Each step then maps them again, page by page,
    with tens of thousands of page faults for a few thousand tokens. The only cost is that the process stays
    as large as its largest step. No effect with another C library.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, _KEEP_UP_TO_BYTES)
    libc.mallopt(_M_TRIM_THRESHOLD, _KEEP_UP_TO_BYTES)


class PartialStepError(RuntimeError):
    """A shared step in which the updates of some tasks failed. The other tasks have done it.

    Attributes:
        losses: losses of the tasks that have done the step, as returned by `FusedEngine.step`.
        faults: errors of the others, by job id.
    """

    def __init__(self, losses: dict[str, float], faults: dict[str, UpdateError]) -> None:
        super().__init__("; ".join(f"{job_id}: {error}" for job_id, error in faults.items()))
        self.losses = losses
        self.faults = faults


class FusedEngine:
    """Trains many LoRA adapters at once on one frozen base model (ASPEN/mLoRA, arXiv 2312.02515).

    A step packs one micro-batch of each task into one sequence of rows, and runs the base once on all of
    them; each adapter gets only its own task's rows. The objective is the sum of the tasks' mean token
    losses. No term of it depends on two adapters, so each gradient is that of the task alone.

    Only one engine at a time may step on a base. Methods for one task raise `KeyError` if it is not attached.
    """

    def __init__(self, base: SharedBase, datasets: DatasetRoot) -> None:
        """Put an engine on the device of its base."""
        self._base = base
        self._datasets = datasets
        self._indices = RecentIndices()
        self._device = base.model.device
        self._residents: dict[str, ResidentTask] = {}
        prepare(self._device)

    @property
    def job_ids(self) -> tuple[str, ...]:
        """Ids of the attached tasks, in the order of attachment."""
        return tuple(self._residents)

    def attach(
        self,
        task: LoraTask,
        state: TaskState | None = None,
        delivery: Delivery | None = None,
        source: str | None = None,
    ) -> None:
        """Copy a task to the device, without progress or with the progress of ``state``, if its file is that
        of a ``delivery`` and, before the first step, has only lines of the file ``source``.

        Raises:
            ValueError: the task is attached already, does not fit the base, or ``state`` is of another task.
            DataDifferError: the dataset is not the delivered one.
            DatasetError: the dataset is unfit.
        """
        if task.job_id in self._residents:
            raise ValueError(f"{task.job_id}: already attached")
        if state is not None and state.task != task:
            raise ValueError(f"{task.job_id}: the state is of another task, or of other settings")
        if task.sequence_length > self._base.longest_sequence_tokens:
            raise ValueError(
                f"{task.job_id}: sequences of {task.sequence_length} tokens, "
                f"but the base model takes {self._base.longest_sequence_tokens}"
            )
        layout = self._base.layout(task)
        form = with_columns(self._base.objective.records, task.columns)
        if delivery is None:
            dataset = self._datasets.open(task.dataset, self._indices.find, form)
        else:
            # Later, the state has the digest of the file that was checked.
            source = source if state is None else None
            dataset = open_delivered(self._datasets, delivery, self._indices.find, form, source)
        try:
            self._indices.keep(dataset.identity, form, dataset.index)
            state = state or new_state(task, layout, dataset.digest)
            self._residents[task.job_id] = ResidentTask(state, layout, dataset, self._device)
        except BaseException:
            dataset.close()
            raise

    def detach(self, job_id: str) -> TaskState:
        """Remove a task from the device and return its state, from which ``attach`` continues."""
        state = self._residents[job_id].state()
        self.discard(job_id)
        return state

    def discard(self, job_id: str) -> None:
        """Remove a task and its state from the device. No effect if it is not attached."""
        resident = self._residents.pop(job_id, None)
        if resident is not None:
            resident.close()

    def state(self, job_id: str) -> TaskState:
        """Copy the state of an attached task, for a checkpoint during training."""
        return self._residents[job_id].state()

    def samples_done(self, job_id: str) -> int:
        """Return the sequences that an attached task has used."""
        return self._residents[job_id].samples_done

    def dataset_records(self, job_id: str) -> int:
        """Return the number of records in the data of an attached task."""
        return self._residents[job_id].dataset_records

    @property
    def precision(self) -> str:
        """Type of the numbers of a pass, such as `bfloat16`."""
        return self._base.precision

    def step_tokens(self, job_id: str) -> int:
        """Return the tokens of a task's last micro-batch; 0 before the first."""
        return self._residents[job_id].step_tokens

    def upcoming_size(self, job_id: str) -> tuple[int, int]:
        """Return the tokens, and the rows that bear loss, of a task's next micro-batch: a step with no more
        of either needs no more memory.
        """
        sequences = self._residents[job_id].next_micro_batch(self._base.tokenizer)
        return (
            sum(len(sequence.token_ids) for sequence in sequences),
            sum(sequence.loss_tokens for sequence in sequences),
        )

    def measured(self, job_id: str) -> AbstractContextManager[StepMemory]:
        """Measure the memory of the step of one task in the block, including its adapter, gradient and
        moments, without the base model and other tasks.
        """
        held = self._residents[job_id].held
        own_bytes = sum(tensor.nbytes for tensor in held)
        return measured(self._device, chain(self._base.model.parameters(), held), own_bytes)

    def gradient_norm(self, job_id: str) -> float:
        """Return the L2 norm of a task's last gradient before clipping; if it is not finite, there was no
        update.
        """
        return self._residents[job_id].gradient_norm

    def gradients(self, job_id: str) -> dict[str, Tensor]:
        """Copy the clipped gradients of a task's last step, by matrix name."""
        return self._residents[job_id].gradients()

    def step(self, job_ids: Sequence[str] | None = None) -> dict[str, float]:
        """Advance tasks by one micro-batch each, all in one pass; other tasks are unchanged.

        Args:
            job_ids: ids of the tasks; default: all attached ones.

        Returns:
            the mean token loss of each task before the update. A task has no update if its loss is not
            finite, or its gradient, see `gradient_norm`.

        Raises:
            ValueError: no task is given, one is given twice, or one has used all its samples.
            PartialStepError: the updates of some tasks failed. After any other error, no task has done the
                step.
        """
        names = self.job_ids if job_ids is None else tuple(job_ids)
        residents = [self._residents[name] for name in names]
        if not names or len(set(names)) != len(names):
            raise ValueError("a step needs tasks, each of them once")
        for resident in residents:
            if resident.finished:
                raise ValueError(f"{resident.task.job_id}: has used all its samples")
        batch = pack([r.next_micro_batch(self._base.tokenizer) for r in residents], self._device)
        for resident, (start, stop) in zip(residents, batch.task_rows, strict=True):
            resident.begin_step(stop - start)
        losses = self._backward(residents, batch)
        completed = dict(zip(names, losses.tolist(), strict=True))
        faults: dict[str, UpdateError] = {}
        for name, resident in zip(names, residents, strict=True):
            try:
                resident.finish_step()
            except Exception as error:
                raise_if_device_is_lost(error)
                faults[name] = UpdateError(error)
                del completed[name]
        if faults:
            raise PartialStepError(completed, faults)
        return completed

    def _backward(self, residents: Sequence[ResidentTask], batch: PackedBatch) -> Tensor:
        """Leave each task's gradient in its adapter and return the tasks' losses, float32 ``[tasks]``."""
        with adapters_placed(self._base, residents, batch):
            with precision(self._device):
                logits = loss_logits(self._base, batch)
            token_losses = cross_entropy(logits.float(), batch.labels, reduction="none")
            losses = torch.stack([part.mean() for part in token_losses.split(batch.loss_counts)])
            losses.sum().backward()
        return losses.detach()
