"""What is a task's own fault, and whether it could do better on another node."""

import torch
from pydantic import ValidationError

from executors.lora.dataset import DatasetError
from schemas import codec

TASK_FAILURES = (ValueError, ArithmeticError, OSError, MemoryError, RuntimeError)
"""What one task may raise while the node and the other tasks are sound.

Not among them: whatever shows a fault of this program (`KeyError`, `TypeError`), and, although it is a
`RuntimeError`, `torch.AcceleratorError`; see `raise_if_device_is_lost`.
"""


class DivergenceError(ArithmeticError):
    """A task has diverged: its loss or its gradient is no number any more, and nothing is learned from it."""


def raise_if_device_is_lost(error: BaseException) -> None:
    """Raise `error` again if it leaves the device unusable: no task is to blame, and only a restart helps."""
    if isinstance(error, torch.AcceleratorError):
        raise error


def is_permanent(error: BaseException) -> bool:
    """Whether a task would fail so on every node of its zone: they share base model, datasets and seeds."""
    if isinstance(error, DatasetError) and isinstance(error.__cause__, OSError):
        # Unlike a missing file, a file that cannot be read may be the fault of this node's mount.
        return isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)
    return isinstance(error, ValueError | ArithmeticError)


def describe(error: BaseException) -> str:
    """Return the failure on one line of at most 2,000 characters."""
    message = codec.describe(error) if isinstance(error, ValidationError) else str(error)
    text = " ".join(message.split()) or type(error).__name__
    return text[:2_000]
