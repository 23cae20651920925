"""A job's model: loaded from a local Hugging Face directory, and saved as such or as a PEFT adapter."""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from executors.gang.models import ModelError, named_as_in_job
from executors.lora.base_model import load_tokenizer
from executors.lora.checkpoint import ADAPTER_CONFIG, ADAPTER_TENSORS
from executors.lora.model_kind import BaseModelError, is_classifier, read_config
from executors.lora.pretrained import load_pretrained, refuse_missing
from executors.lora.randomness import derive_seed
from schemas.lora import LoraHyperparameters


@dataclass(frozen=True)
class TrainableModel:
    """A causal language model of which all weights, or those of an adapter, are trained, in float32."""

    module: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Trained parameters by name, in the model's order; tied weights are there once."""
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad:
                yield name, parameter

    def files(self) -> dict[str, bytes]:
        """The content of the directory that the model, or its adapter, is published as, by file name."""
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


def load_model(
    directory: Path, adapter: LoraHyperparameters | None, seed: int, device: torch.device, name: str
) -> TrainableModel:
    """Load a model, with a new adapter on it if there is to be one.

    What is trained is float32. What is frozen is float32 on a CPU and bfloat16 on CUDA.

    Args:
        name: of the model, as the job has it.

    Raises:
        ModelError: it is no causal language model, or a target module matches no layer.
        OSError: a file cannot be read.
    """
    is_frozen_bf16 = adapter is not None and device.type == "cuda"
    with named_as_in_job(directory, name):
        config = read_config(directory)
        if is_classifier(config):
            raise BaseModelError(
                f"{directory}: a sequence classifier, and only causal language models are trained here"
            )
        base, missing = load_pretrained(
            AutoModelForCausalLM, directory, config, torch.bfloat16 if is_frozen_bf16 else torch.float32
        )
        refuse_missing(directory, base, missing)
        tokenizer = load_tokenizer(directory, base)
    module: PreTrainedModel | PeftModel = base
    if adapter is not None:
        torch.manual_seed(derive_seed(seed, "weights"))
        module = put_adapter(base, _peft_config(adapter), name)
    return TrainableModel(module.train().to(device), tokenizer)


def put_adapter(base: PreTrainedModel, config: LoraConfig, name: str) -> PeftModel:
    """Put a new adapter on a model.

    Args:
        name: of the model in the job, which the adapter's configuration gives in place of this machine's
            path.

    Raises:
        ModelError: PEFT does not adapt what the configuration names.
    """
    try:
        module = cast(PeftModel, get_peft_model(base, config))
    except ValueError as error:
        raise ModelError(name, f"no such adapter: {error}") from error
    for each in module.peft_config.values():
        each.base_model_name_or_path = name
    return module


def longest_sequence_tokens(module: PreTrainedModel | PeftModel) -> int | None:
    """The longest sequence that a model takes; None where it sets no bound."""
    limit = getattr(module.config.get_text_config(), "max_position_embeddings", None)
    return cast("int | None", limit)


def _peft_config(adapter: LoraHyperparameters) -> LoraConfig:
    return LoraConfig(
        r=adapter.rank,
        lora_alpha=cast(int, adapter.alpha),  # any number will do
        lora_dropout=adapter.dropout,
        target_modules="all-linear" if adapter.is_all_linear else list(adapter.target_modules),
        task_type="CAUSAL_LM",
    )


def _ordered(config: bytes) -> bytes:
    """PEFT keeps the target modules as a set, whose order differs from process to process."""
    fields = json.loads(config)
    fields["target_modules"] = sorted(fields["target_modules"])
    return json.dumps(fields, indent=2, sort_keys=True).encode()
