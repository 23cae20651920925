"""What reports say of an error that ends a run."""

from pydantic import ValidationError

from executors.lora.dataset import DatasetError
from schemas import codec
from schemas.base import MAX_TEXT_LENGTH


def is_permanent(error: BaseException) -> bool:
    """Whether a task would fail so on every node of its zone: they share base model, datasets and seeds."""
    if isinstance(error, DatasetError) and isinstance(error.__cause__, OSError):
        # Unlike a missing file, a file that cannot be read may be the fault of this node's mount.
        return isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)
    return isinstance(error, ValueError | ArithmeticError)


def described(error: BaseException | str) -> str:
    """An error in one line, short enough for a report."""
    message = codec.describe(error) if isinstance(error, ValidationError) else str(error)
    return (" ".join(message.split()) or type(error).__name__)[:MAX_TEXT_LENGTH]
