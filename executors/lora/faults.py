"""Reports of an error that ends a run."""

import torch
from pydantic import ValidationError

from executors.lora.dataset import DatasetError
from schemas import codec
from schemas.base import MAX_TEXT_LENGTH

_DETERMINISTIC = (
    ValueError,
    ArithmeticError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    NotImplementedError,
)
"""Errors that depend only on a task's data and settings, unlike those of memory, disk and device."""
_SELF_EXPLANATORY = (ValueError, ArithmeticError, OSError, RuntimeError, MemoryError)


class UpdateError(RuntimeError):
    """The optimizer step of a task failed: its adapter may be updated in part, so its checkpoint counts."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"the update of the adapter has failed: {described(error)}")
        self.__cause__ = error.with_traceback(None)


def is_permanent(error: BaseException) -> bool:
    """Return whether a task would fail on every node of its zone in the same way: nodes share base model,
    datasets and seeds."""
    if isinstance(error, DatasetError) and isinstance(error.__cause__, OSError):
        # Unlike a missing file, an unreadable file may be a fault of this node's mount.
        return isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)
    if isinstance(error, UpdateError):
        return error.__cause__ is not None and is_permanent(error.__cause__)
    return isinstance(error, _DETERMINISTIC)


def described(error: BaseException | str) -> str:
    """Return an error as one line, short enough for a report and encodable as UTF-8. The type is named if the
    message alone is not enough, such as the key of a `KeyError`."""
    message = codec.describe(error) if isinstance(error, ValidationError) else str(error)
    line = " ".join(message.split()).encode(errors="backslashreplace").decode()
    if isinstance(error, BaseException) and not (line and isinstance(error, _SELF_EXPLANATORY)):
        line = f"{type(error).__name__}: {line}" if line else type(error).__name__
    return line[:MAX_TEXT_LENGTH]


def raise_if_device_is_lost(error: BaseException) -> None:
    """Raise `error` again if the device is unusable after it: no task is at fault, and only a restart
    helps."""
    if isinstance(error, torch.AcceleratorError):
        raise error
