"""Opening of a task before its first step: data, checkpoints and an adapter on the device.

A separate thread opens it while the task before it still trains (pipeline switch, Ymir, section 6.2).
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from executors.lora.adapter import AdapterLayout, TrainedAdapter
from executors.lora.lora_task import AdapterState, LoraTask, TaskState
from executors.lora.resident import new_state
from executors.lora.shared_base import SharedBase
from executors.tuner.checkpoints import SavedJob, TuningCheckpoints, fresh_from, lora_task, shared_state
from executors.tuner.data import Loader, Loaders, TokenizedFile
from executors.tuner.faults import FieldError, UnfitMergeError, fault_in, fault_of
from executors.tuner.files import FinishedTuning, JobPosition
from executors.tuner.settings import TunerSettings
from executors.tuner.training import new_adapter
from schemas.merging.commands import JobOrder, TaskAssigned, TransferMode

T = TypeVar("T", covariant=True)


@dataclass
class TrainingJob:
    """A job of a task on a rank."""

    order: JobOrder
    task: LoraTask
    base: SharedBase
    layout: AdapterLayout
    loader: Loader
    head: int = 0
    """Number of the job's head in the task's adapter."""
    iterations: int = 0
    drawn: int = 0
    merged_at: int = 0
    """Samples drawn when its merge began."""
    finished: FinishedTuning | None = None
    """Set if the job was over before."""
    is_over: bool = False
    loss: float | None = None
    """Loss of the last step."""

    @property
    def job_id(self) -> str:
        return self.order.job_id

    @property
    def validation(self) -> TokenizedFile:
        """Its validation data, of a job that has some."""
        data = self.loader.validation
        assert data is not None, "only what there is is measured on"
        return data

    @property
    def batch_size(self) -> int:
        return self.order.workload.hyperparameters.batch_size

    @property
    def samples_done(self) -> int:
        """Samples done, as reported."""
        return self.iterations * self.batch_size

    @property
    def epochs(self) -> float:
        """Epochs of its data done."""
        return self.drawn / len(self.loader.training)

    @property
    def merged_epochs(self) -> float:
        """Epochs of its data done since its merge began."""
        return (self.drawn - self.merged_at) / len(self.loader.training)

    @property
    def shows_donor(self) -> bool:
        """Whether its accuracy with its donor's weights is meaningful. If it has a head of its own, it is not
        before that head is trained."""
        return self.layout.head_size == 0

    @property
    def position(self) -> JobPosition:
        return JobPosition(
            job_id=self.job_id, iterations=self.iterations, drawn=self.drawn, is_over=self.is_over
        )

    def move_to(self, position: JobPosition) -> None:
        self.iterations, self.drawn, self.is_over = position.iterations, position.drawn, position.is_over


@dataclass
class OpenTask:
    """A task that is ready to begin.

    Attributes:
        jobs: in the order of the command.
        state: state that the present phase continues from. None for a new adapter, and on all ranks but the
            leader, which sends it.
    """

    jobs: list[TrainingJob]
    state: AdapterState | None


def refuse_unfit_merge(mode: TransferMode, orders: Sequence[JobOrder]) -> None:
    """Check that the jobs of a merged task can share an adapter.

    Raises:
        UnfitMergeError: they cannot; names the field that differs.
    """
    if mode == "normal":
        return
    first, second = (order.workload.hyperparameters.needed_alike(mode) for order in orders)
    for field, one in first.items():
        if one != second[field]:
            raise UnfitMergeError(
                f"hyperparameters.{field}", f"{one} and {second[field]}: jobs that are merged need the same"
            )


def open_task(
    command: TaskAssigned,
    leads: bool,
    base: SharedBase,
    checkpoints: TuningCheckpoints,
    loaders: Loaders,
    settings: TunerSettings,
) -> OpenTask:
    """Open a task. Only its leader reads checkpoints; it sends their content to the other ranks.

    Raises:
        JobError: a job cannot be trained.
        UnfitMergeError: the jobs cannot be merged.
        StaleWriterError: a later generation runs the jobs.
    """
    refuse_unfit_merge(command.mode, command.orders)
    jobs: list[TrainingJob] = []
    for order in command.orders:
        with fault_of(order.job_id):
            job = open_job(order, base, loaders)
            job.head = len(jobs) if command.mode == "spatial" else 0
            jobs.append(job)
    saved: list[SavedJob | None] = [None] * len(jobs)
    if leads:
        for index, job in enumerate(jobs):
            partner = jobs[1 - index].job_id if len(jobs) == 2 else None
            with fault_of(job.job_id):
                saved[index] = _find(job, command, partner, checkpoints, settings)
    return OpenTask(jobs, _state(command.mode, jobs, saved, checkpoints) if leads else None)


def adapter_for(
    mode: TransferMode, jobs: Sequence[TrainingJob], state: AdapterState | None, device: torch.device
) -> TrainedAdapter:
    """Return the adapter of the task's present phase: that of the first unfinished job.

    Args:
        state: state to continue from; None for a new adapter.
    """
    own, heads = (jobs[0], len(jobs)) if mode == "spatial" else (trained_first(jobs), 1)
    layout = own.base.layout(own.task, heads)
    if state is None:
        state = new_state(own.task, layout, own.loader.digest)
    return new_adapter(own.task, layout, state, device)


def task_state(job: TrainingJob, state: AdapterState, position: JobPosition) -> TaskState:
    """Return the engine's state of a job at a position.

    Args:
        state: state of the job alone.
    """
    return TaskState(
        parameters=state.parameters,
        first_moment=state.first_moment,
        second_moment=state.second_moment,
        optimizer_steps=state.optimizer_steps,
        task=job.task,
        micro_batches=position.iterations,
        samples_done=position.iterations * job.batch_size,
        cursor=job.loader.stream.cursor(position.drawn),
        dataset_digest=job.loader.digest,
    )


def trained_first(jobs: Sequence[TrainingJob]) -> TrainingJob:
    """Return the first job that is not over; the last job if all are."""
    return next((job for job in jobs if not job.is_over), jobs[-1])


def open_job(order: JobOrder, base: SharedBase, loaders: Loaders) -> TrainingJob:
    """Open a job without progress.

    Raises:
        FieldError: the job does not fit the base model, or its data is unfit.
    """
    workload = order.workload
    with fault_in("hyperparameters.frozen_layers"):
        base = base.frozen(workload.hyperparameters.frozen_layers)
    length = workload.hyperparameters.sequence_length
    if length > base.longest_sequence_tokens:
        longest = base.longest_sequence_tokens
        raise FieldError(
            "hyperparameters.sequence_length", f"{length} tokens, the base model takes {longest}"
        )
    task = lora_task(order.job_id, workload)
    with fault_in("hyperparameters.target_modules"):
        layout = base.layout(task)
    return TrainingJob(order, task, base, layout, loaders.open(workload))


def _find(
    job: TrainingJob,
    command: TaskAssigned,
    partner: str | None,
    checkpoints: TuningCheckpoints,
    settings: TunerSettings,
) -> SavedJob | None:
    """Read the saved state of a job, and set the job's position."""
    found = checkpoints.find(job.order, command.generation, settings.checkpoint_wait_s)
    if isinstance(found, FinishedTuning):
        job.finished = found
        job.move_to(found.position)
        job.loss = found.loss
        return None
    if found is None:
        return None
    if found.progress.partner != partner:
        is_donor = command.mode == "temporal" and job.order is command.orders[0]
        if command.mode != "normal" and not is_donor:
            done = found.progress.position.iterations
            raise UnfitMergeError(
                "mode", f"the receiver of a merge has no progress before it, this job has {done} iterations"
            )
    if found.state.dataset_digest != job.loader.digest:
        raise FieldError("dataset.path", f"{job.task.dataset} has changed since the job was checkpointed")
    job.move_to(found.progress.position)
    job.merged_at = found.progress.merged_at if found.progress.partner == partner else job.drawn
    return found


def _state(
    mode: TransferMode,
    jobs: Sequence[TrainingJob],
    saved: Sequence[SavedJob | None],
    checkpoints: TuningCheckpoints,
) -> AdapterState | None:
    """Return the adapter state that the present phase continues from."""
    if mode == "spatial":
        return _shared_state(jobs, saved)
    job = trained_first(jobs)
    own = saved[jobs.index(job)]
    if own is not None:
        return own.state
    donor_id, digest = jobs[0].job_id, None
    if mode == "normal":
        source = job.order.starts_from
        if source is None:
            return None
        donor_id, digest = source.job_id, source.digest
    elif job is not jobs[1]:
        return None
    with fault_of(job.job_id):
        donor = checkpoints.adapter_of(donor_id, job.order.workload, digest)
        if donor is None:
            raise OSError(f"the adapter of its donor {donor_id} was removed")
        return fresh_from(donor, job.layout)


def _shared_state(jobs: Sequence[TrainingJob], saved: Sequence[SavedJob | None]) -> AdapterState | None:
    """Return the state in the newer of two checkpoints of one adapter. It covers both jobs."""
    there = [each for each in saved if each is not None]
    if not there:
        return None
    newest = max(there, key=lambda each: each.progress.position.iterations)
    for job in jobs:
        other = newest.progress.beside
        if not job.is_over and other is not None and other.job_id == job.job_id:
            job.move_to(_going_on(other))
    owner = next(job for job, each in zip(jobs, saved, strict=True) if each is newest)
    return shared_state(owner.layout, newest.state, owner.head, newest.other_head)


def _going_on(position: JobPosition) -> JobPosition:
    """Return the position of a job that continues. Only the job's own record states whether it is over."""
    return position.model_copy(update={"is_over": False})


class BackgroundOpening(Generic[T]):
    """A task that is opened by a background thread."""

    def __init__(self, load: Callable[[], T], is_halted: Callable[[], bool]) -> None:
        """Start; `is_halted` returns whether the task is to end."""
        self._load = load
        self._is_halted = is_halted
        self._opened: T | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="opening", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether the task can begin."""
        return self._opened is not None

    @property
    def is_in_vain(self) -> bool:
        """Whether the task will not begin: its opening failed, or it is to end."""
        return self._error is not None or self._is_halted()

    def result(self) -> T:
        """Wait for the opened task and return it; raises the error of the opening."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._opened is not None, "it was opened or has failed"
        return self._opened

    def _run(self) -> None:
        try:
            # Otherwise the thread has torch's default number of threads, and takes cores from the training.
            torch.set_num_threads(1)
            self._opened = self._load()
        except Exception as error:
            self._error = error
