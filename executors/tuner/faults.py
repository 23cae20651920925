"""Errors of jobs that cannot be trained, by the name of the invalid field, and of lost or halted ranks."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from executors.gang.faults import is_permanent_anywhere
from executors.gang.meeting import PeerLostError
from executors.lora.faults import described
from executors.node.checkpoints import StaleWriterError


class FieldError(ValueError):
    """A field of a job's order, or the file that it refers to, is unfit. The message begins with the field's
    name."""

    def __init__(self, field: str, error: BaseException | str) -> None:
        super().__init__(f"{field}: {described(error)}")
        self.is_permanent = isinstance(error, str) or cannot_succeed_elsewhere(error)


class UnfitMergeError(FieldError):
    """Two jobs cannot be trained together; each may be trained alone."""

    def __init__(self, field: str, error: str) -> None:
        super().__init__(field, error)
        self.is_permanent = False


class JobError(RuntimeError):
    """A job of a task has an error."""

    def __init__(self, job_id: str, error: BaseException) -> None:
        super().__init__(described(error))
        self.job_id = job_id
        self.is_permanent = cannot_succeed_elsewhere(error)


@contextmanager
def fault_in(field: str) -> Iterator[None]:
    """Name a field in the errors of the block."""
    try:
        yield
    except FieldError:
        raise
    except ValueError as error:
        raise FieldError(field, error) from error


@contextmanager
def fault_of(job_id: str) -> Iterator[None]:
    """Name a job in the errors of the block, except those of a lost rank or device and of a replaced
    writer."""
    try:
        yield
    except (JobError, UnfitMergeError, PeerLostError, StaleWriterError, torch.AcceleratorError):
        raise
    except Exception as error:
        raise JobError(job_id, error) from error


def cannot_succeed_elsewhere(error: BaseException) -> bool:
    """Return whether the job would fail on every node of its zone in the same way: nodes share base model,
    data and seeds."""
    if isinstance(error, FieldError | JobError):
        return error.is_permanent
    return is_permanent_anywhere(error)


class HaltedError(Exception):
    """The part is halted before it met the other ranks."""
