"""The profile run of a new job: some steps from the base model, of which nothing is kept but numbers."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from executors.lora.adapter import AdapterLayout
from executors.lora.base_model import SharedBase
from executors.lora.resident import new_state
from executors.tuner.checkpoints import lora_task
from executors.tuner.data import Loader, PreparedLoaders
from executors.tuner.embedding import Embeddings, embed
from executors.tuner.faults import FieldError, fault_in
from executors.tuner.memory import BYTES_PER_GIB, bytes_beside_base, choose_micro_batch
from executors.tuner.reports import measured_step, reportable
from executors.tuner.settings import TunerSettings
from executors.tuner.training import Sample, Step, Trainer, new_adapter
from schemas.merging.commands import ProfileOrdered
from schemas.merging.reports import MeasuredStep
from schemas.merging.workload import TuningWorkload

_TRAINING_SHARE = 0.7
"""Of the time that steps may take; the rest is for the embedding."""
_UNTIMED_STEPS = 1
"""The first step of a configuration takes longer."""
_TIMED_STEPS = 3


@dataclass(frozen=True)
class Profile:
    """What a profile run has shown; the fields of `ProfileReported` of the same names."""

    losses: tuple[float, ...]
    embedding: tuple[float, ...]
    features: tuple[float, ...]
    accuracy: float | None
    steps: tuple[MeasuredStep, ...]
    memory_gib: float
    loader_s: float
    dataset_samples: int


def open_trainer(base: SharedBase, workload: TuningWorkload, loader: Loader, device: torch.device) -> Trainer:
    """A new adapter of a job, ready to train; its micro-batch is the whole batch.

    Raises:
        FieldError: the job does not fit the base model.
    """
    hyperparameters = workload.hyperparameters
    with fault_in("hyperparameters.frozen_layers"):
        own = base.frozen(hyperparameters.frozen_layers)
    if hyperparameters.sequence_length > base.longest_sequence_tokens:
        raise FieldError(
            "hyperparameters.sequence_length",
            f"{hyperparameters.sequence_length} tokens, the base model takes {base.longest_sequence_tokens}",
        )
    task = lora_task("profile", workload)
    with fault_in("hyperparameters.target_modules"):
        layout = AdapterLayout(task, own.sites)
    adapter = new_adapter(task, layout, new_state(task, layout, loader.digest), device)
    return Trainer(
        own,
        adapter,
        device,
        hyperparameters.batch_size,
        checkpoints_activations=hyperparameters.gradient_checkpointing,
    )


def profile(
    command: ProfileOrdered,
    base: SharedBase,
    loaders: PreparedLoaders,
    settings: TunerSettings,
    device: torch.device,
    is_halted: Callable[[], bool],
) -> Profile | None:
    """Make a profile run; None if it was halted.

    Raises:
        FieldError: the job cannot be trained.
        DivergedError: its loss is not finite.
        TimeoutError: the time was over before the first step.
    """
    started_s = time.monotonic()
    deadline_s = started_s + command.limit_s
    workload = command.order.workload
    loader = loaders.take(workload)
    try:
        trainer = open_trainer(base, workload, loader, device)
        batch_size = workload.hyperparameters.batch_size
        longest = max(
            (loader.training[index] for index in loader.stream.take(0, batch_size)),
            key=lambda sequence: len(sequence.token_ids),
        )
        micro = choose_micro_batch(trainer, Sample(0, 0, longest), batch_size, settings)
        trainer.micro_batch_size = micro
        accuracy = _accuracy(trainer, loader, settings)
        until_s = time.monotonic() + _TRAINING_SHARE * max(deadline_s - time.monotonic(), 0.0)
        with _memory_watched(trainer, loader) as peak_bytes:
            losses, steps = _train(command, trainer, loader, until_s, deadline_s, is_halted)
        if is_halted():
            return None
        configurations = [_measured(steps, micro, batch_size)]
        if micro > 1 and time.monotonic() < until_s and not is_halted():
            trainer.micro_batch_size = micro // 2
            configurations.append(_measured(_repeat(trainer, loader, until_s), micro // 2, batch_size))
        embeddings = _embed(base, loader, command.fisher_samples, deadline_s)
        return Profile(
            losses=losses,
            embedding=embeddings.fisher,
            features=embeddings.features,
            accuracy=accuracy,
            steps=tuple(configurations),
            memory_gib=peak_bytes[0] / BYTES_PER_GIB,
            loader_s=loader.prepared_s,
            dataset_samples=len(loader.training),
        )
    finally:
        loader.close()


def _accuracy(trainer: Trainer, loader: Loader, settings: TunerSettings) -> float | None:
    if loader.validation is None:
        return None
    count = min(len(loader.validation), settings.evaluation_samples)
    right, total = trainer.count_right([loader.validation[index] for index in range(count)])
    return right / total


def _train(
    command: ProfileOrdered,
    trainer: Trainer,
    loader: Loader,
    until_s: float,
    deadline_s: float,
    is_halted: Callable[[], bool],
) -> tuple[tuple[float, ...], list[Step]]:
    losses: list[float] = []
    steps: list[Step] = []
    while len(losses) < command.iterations and not is_halted():
        if time.monotonic() >= (until_s if losses else deadline_s):
            break
        step = _step(trainer, loader, len(losses))
        loss = reportable(step.losses[0])
        assert loss is not None, "a batch has tokens that bear loss"
        losses.append(loss)
        steps.append(step)
    if not losses and not is_halted():
        raise TimeoutError(f"limit_s: {command.limit_s:g} s were over before the first step")
    return tuple(losses), steps


def _step(trainer: Trainer, loader: Loader, number: int) -> Step:
    return trainer.step(_samples(loader, number), number, 1, (), lambda _: None)


def _samples(loader: Loader, number: int) -> list[Sample]:
    batch_size = loader.workload.hyperparameters.batch_size
    records = loader.stream.take(number * batch_size, batch_size)
    return [Sample(place, 0, loader.training[record]) for place, record in enumerate(records)]


def _repeat(trainer: Trainer, loader: Loader, until_s: float) -> list[Step]:
    """Some steps more, of which only the time counts."""
    steps: list[Step] = []
    while len(steps) < _UNTIMED_STEPS + _TIMED_STEPS and (not steps or time.monotonic() < until_s):
        steps.append(_step(trainer, loader, len(steps)))
    return steps


def _measured(steps: list[Step], micro_batch_size: int, batch_size: int) -> MeasuredStep:
    timed = steps[_UNTIMED_STEPS:] or steps
    return measured_step(timed, micro_batch_size, batch_size, gpus=1, nodes=1)


def _embed(base: SharedBase, loader: Loader, most: int, deadline_s: float) -> Embeddings:
    indices = loader.stream.take(0, min(most, len(loader.training)))
    return embed(base, [loader.training[index] for index in indices], deadline_s)


@contextmanager
def _memory_watched(trainer: Trainer, loader: Loader) -> Iterator[list[int]]:
    """How many bytes of a device its steps in the block need at most, beside what it held before: one number,
    there after the block."""
    peak: list[int] = []
    device = trainer.device
    if device.type != "cuda":
        yield peak
        peak.append(bytes_beside_base(trainer, _samples(loader, 0)))
        return
    torch.cuda.reset_peak_memory_stats(device)
    state_bytes = 4 * trainer.adapter.gradient.nbytes
    before_bytes = torch.cuda.memory_allocated(device) - state_bytes
    yield peak
    peak.append(max(torch.cuda.max_memory_allocated(device) - before_bytes, 0))
