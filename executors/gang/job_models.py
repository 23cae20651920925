"""The model of a job: its directory, its name in errors, and its training: all weights, or those of a PEFT
adapter."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast

from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from executors.lora.model_files import fault_in_files
from executors.lora.task_files import ADAPTER_CONFIG, ADAPTER_TENSORS
from schemas.lora import LoraHyperparameters


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


@dataclass(frozen=True)
class TrainableModel:
    """A causal language model. All of its weights, or only those of an adapter, are trained in float32."""

    module: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the trained parameters by name, in the model's order; tied weights once."""
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad:
                yield name, parameter

    def files(self) -> dict[str, bytes]:
        """Return the contents of the published directory of the model, or of its adapter, by file name."""
        with tempfile.TemporaryDirectory() as scratch:
            self.module.save_pretrained(scratch, safe_serialization=True)
            if isinstance(self.module, PeftModel):
                names = (ADAPTER_CONFIG, ADAPTER_TENSORS)
                files = {name: (Path(scratch) / name).read_bytes() for name in names}
                return {**files, ADAPTER_CONFIG: _ordered(files[ADAPTER_CONFIG])}
            self.tokenizer.save_pretrained(scratch)
            return files_in(Path(scratch))


def put_adapter(base: PreTrainedModel, adapter: LoraHyperparameters, name: str, **config: Any) -> PeftModel:
    """Put a new adapter on a model.

    Args:
        config: further fields of PEFT's configuration, such as the targets.
        name: name of the model in the job, which the adapter's configuration states instead of the local
            path.

    Raises:
        ModelError: PEFT cannot adapt the configured modules.
    """
    alpha = cast(int, adapter.alpha)  # any number is valid
    fields = LoraConfig(r=adapter.rank, lora_alpha=alpha, lora_dropout=adapter.dropout, **config)
    try:
        module = cast(PeftModel, get_peft_model(base, fields))
    except ValueError as error:
        raise ModelError(name, f"no such adapter: {error}") from error
    for each in module.peft_config.values():
        each.base_model_name_or_path = name
    return module


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the contents of the files of a folder, by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def check_length(module: PreTrainedModel | PeftModel, name: str, sequences: str, tokens: int) -> None:
    """Check that a model accepts sequences of a length.

    Args:
        name: name of the model in the job.
        sequences: subject of the error, with its verb.

    Raises:
        ModelError: it does not.
    """
    longest = getattr(module.config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and tokens > longest:
        raise ModelError(name, f"takes {longest} tokens, {sequences} {tokens}")


def _ordered(config: bytes) -> bytes:
    """Return a configuration with sorted target modules: PEFT keeps a set, whose order differs between
    processes."""
    fields = json.loads(config)
    fields["target_modules"] = sorted(fields["target_modules"])
    return json.dumps(fields, indent=2, sort_keys=True).encode()
