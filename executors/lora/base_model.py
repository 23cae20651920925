"""The frozen base model that all adapters of a node share."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from executors.lora.adapter import inject
from executors.lora.default_base import default_base_directory
from executors.lora.fused_linear import FusedLinear
from executors.lora.packed_attention import PACKED_ATTENTION


class BaseModelError(ValueError):
    """A directory that holds no base model that the engine can use."""


@dataclass(frozen=True)
class SharedBase:
    """A frozen causal language model, ready for adapters.

    Attributes:
        directory: where it was loaded from.
        model: the model; its linear layers are replaced by those in ``sites``.
        tokenizer: the model's own.
        sites: layers that can have an adapter, by dotted name.
        frozen_layers: so many of the first layers can have none.
    """

    directory: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    sites: Mapping[str, FusedLinear]
    frozen_layers: int = 0

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return int(self.model.config.get_text_config().num_hidden_layers)

    def frozen(self, layers: int) -> "SharedBase":
        """The same model with no adapters on its first `layers` layers.

        Raises:
            ValueError: it has no more than those.
        """
        if layers >= self.layers:
            raise ValueError(f"{layers} layers cannot be frozen, the base model has {self.layers}")
        sites = {name: site for name, site in self.sites.items() if (layer_of(name) or 0) >= layers}
        return replace(self, sites=sites, frozen_layers=layers) if layers else self

    @property
    def longest_sequence_tokens(self) -> int:
        """Longest sequence that the model takes in whole."""
        config = self.model.config.get_text_config()
        # A sliding window changes nothing for sequences that fit into it, and longer ones are not supported.
        limits: tuple[int | None, ...] = (
            config.max_position_embeddings,
            getattr(config, "sliding_window", None),
        )
        return min(limit for limit in limits if limit is not None)


def load_base(directory: Path | None = None, device: torch.device | str = "cpu") -> SharedBase:
    """Load a local Hugging Face directory and freeze it: float32 on a CPU, bfloat16 on CUDA.

    With no directory, the small default model is used; the first call trains it (see ``default_base``).

    Raises:
        BaseModelError: the directory has no safetensors weights (pickled ones are refused, since loading them
            runs code), is of no causal language model, or its architecture cannot take packed batches.
    """
    directory = default_base_directory() if directory is None else directory
    if not (directory / "config.json").is_file():
        raise BaseModelError(f"{directory}: no Hugging Face model directory (config.json is missing)")
    if not any(directory.glob("*.safetensors")):
        raise BaseModelError(f"{directory}: no safetensors weights; pickled weights are refused")
    device = torch.device(device)
    model = _load_model(directory, torch.bfloat16 if device.type == "cuda" else torch.float32)
    if not model._supports_attention_backend:
        raise BaseModelError(f"{directory}: {type(model).__name__} takes no attention implementation by name")
    model.set_attn_implementation(PACKED_ATTENTION)
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    # Evaluation mode: dropout inside the base would draw from global random state, shared by all tasks.
    model.eval().requires_grad_(False).to(device)
    return SharedBase(directory, model, tokenizer, inject(model))


def _load_model(directory: Path, dtype: torch.dtype) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=dtype,
            output_loading_info=True,
        )
    except ValueError as error:
        raise BaseModelError(f"{directory}: no causal language model: {error}") from error
    model: PreTrainedModel
    model, loading = loaded
    # Of a classifier, for one: its body would get an untrained head.
    if missing := sorted(loading["missing_keys"]):
        what = f"{len(missing)} weights of {type(model).__name__} are missing, such as {missing[0]}"
        raise BaseModelError(f"{directory}: no causal language model: {what}")
    return model


def layer_of(name: str) -> int | None:
    """The number of the layer that a module or parameter belongs to, by its dotted name; None for those
    outside of layers."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)
