"""The directory of a job's model, and the model's name in errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from executors.lora.model_files import fault_in_files


class ModelError(ValueError):
    """A model that is missing or cannot be used; the message begins with its name in the job."""

    def __init__(self, name: str, fault: object) -> None:
        super().__init__(f"{name}: {fault}")


def model_directory(root: Path, name: str) -> Path:
    """Return the directory of the model at the relative path `name` below `root`.

    Raises:
        ModelError: there is no Hugging Face directory with complete safetensors weights, or it is outside the
            root.
    """
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts:
        raise ModelError(name, "a model is a relative path below the model root")
    folder = (root / pure).resolve()
    if not folder.is_relative_to(root.resolve()):
        raise ModelError(name, "leads out of the model root")
    if not (folder / "config.json").is_file():
        raise ModelError(name, "no Hugging Face model directory (config.json is missing)")
    fault = fault_in_files(folder)
    if fault is not None:
        raise ModelError(name, fault)
    return folder


@contextmanager
def named_as_in_job(directory: Path, name: str) -> Iterator[None]:
    """Replace this machine's path to a model by the model's name in errors that are raised in the block.

    Raises:
        ModelError: a `ValueError` was raised.
    """
    try:
        yield
    except ModelError:
        raise
    except ValueError as error:
        fault = str(error).removeprefix(f"{directory}: ")
        raise ModelError(name, fault.replace(f"{directory}/", "").replace(str(directory), name)) from error
