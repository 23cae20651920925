"""Loads the model of an elastic job from a local Hugging Face directory."""

from pathlib import Path
from typing import cast

import torch
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel

from executors.gang.models import named_as_in_job
from executors.gang.trainable_model import TrainableModel, put_adapter
from executors.lora.base_model import load_tokenizer
from executors.lora.model_kind import BaseModelError, is_classifier, read_config
from executors.lora.pretrained import load_pretrained, refuse_missing
from executors.lora.randomness import derive_seed
from schemas.lora import LoraHyperparameters


def load_model(
    directory: Path, adapter: LoraHyperparameters | None, seed: int, device: torch.device, name: str
) -> TrainableModel:
    """Load a model, with a new adapter on it if one is given.

    Trained parameters are float32. Frozen ones are float32 on a CPU and bfloat16 on CUDA.

    Args:
        name: name of the model in the job.

    Raises:
        ModelError: it is not a causal language model, or a target module matches no layer.
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


def _peft_config(adapter: LoraHyperparameters) -> LoraConfig:
    return LoraConfig(
        r=adapter.rank,
        lora_alpha=cast(int, adapter.alpha),  # any number is valid
        lora_dropout=adapter.dropout,
        target_modules="all-linear" if adapter.is_all_linear else list(adapter.target_modules),
        task_type="CAUSAL_LM",
    )
