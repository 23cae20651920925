"""The model of a job in training: all weights, or those of a PEFT adapter on it."""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from executors.gang.models import ModelError
from executors.lora.checkpoint import ADAPTER_CONFIG, ADAPTER_TENSORS


@dataclass(frozen=True)
class TrainableModel:
    """A causal language model of which all weights, or those of an adapter, are trained, in float32."""

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
            return {
                path.name: path.read_bytes() for path in sorted(Path(scratch).iterdir()) if path.is_file()
            }


def put_adapter(base: PreTrainedModel, config: LoraConfig, name: str) -> PeftModel:
    """Put a new adapter on a model.

    Args:
        name: name of the model in the job, which the adapter's configuration states instead of the local
            path.

    Raises:
        ModelError: PEFT cannot adapt the configured modules.
    """
    try:
        module = cast(PeftModel, get_peft_model(base, config))
    except ValueError as error:
        raise ModelError(name, f"no such adapter: {error}") from error
    for each in module.peft_config.values():
        each.base_model_name_or_path = name
    return module


def longest_sequence_tokens(module: PreTrainedModel | PeftModel) -> int | None:
    """Return the longest sequence that a model accepts (tokens); None if it sets no bound."""
    limit = getattr(module.config.get_text_config(), "max_position_embeddings", None)
    return cast("int | None", limit)


def _ordered(config: bytes) -> bytes:
    """Return a configuration with sorted target modules: PEFT keeps a set, whose order differs between
    processes."""
    fields = json.loads(config)
    fields["target_modules"] = sorted(fields["target_modules"])
    return json.dumps(fields, indent=2, sort_keys=True).encode()
