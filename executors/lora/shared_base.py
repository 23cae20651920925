"""A frozen base model, and the lengths of the sequences that it processes whole."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from executors.lora.adapter import AdapterLayout
from executors.lora.fused_layers import FusedHead, FusedLinear
from executors.lora.lora_task import LoraTask
from executors.lora.objective import Objective
from executors.lora.probe.proof import Proof

UNLIMITED_TOKENS = 1_048_576
"""Longest sequence of a job."""

LEAST_TOKENS = 2
"""One token to predict from, and one to predict."""

_WINDOWS = ("sliding_window", "attention_chunk_size", "attention_window", "local_attention")
_CHANGING_ROTARY = ("dynamic", "longrope")
"""Rotary types that rescale with the longest sequence of a batch, beyond the length of the model's training.
Another task's sequence would change the result."""


def longest_sequence_tokens(config: PretrainedConfig, position_offset: int) -> int:
    """Return the longest sequence for which packed attention gives the model's result.

    A window has no effect on sequences that fit into it; longer ones are not supported.

    Args:
        position_offset: position of a sequence's first token.
    """
    limits = [UNLIMITED_TOKENS]
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None:
        limits.append(positions - position_offset)
    for name in _WINDOWS:
        window = getattr(config, name, None)
        # Some configurations have 0 instead of None if there is no window.
        if isinstance(window, int) and window > 0:
            limits.append(window)
    rotary = getattr(config, "rope_parameters", None) or {}
    # The config has one entry for all layers, or one per layer type.
    for each in (rotary, *(value for value in rotary.values() if isinstance(value, dict))):
        if each.get("rope_type") in _CHANGING_ROTARY:
            limits.append(each.get("original_max_position_embeddings") or positions or UNLIMITED_TOKENS)
    return min(limits)


def fault_in_lengths(config: PretrainedConfig, position_offset: int) -> str | None:
    """Return why no sequence can be trained on within the limits of a model's attention; None if one can."""
    longest = longest_sequence_tokens(config, position_offset)
    if longest >= LEAST_TOKENS:
        return None
    fields = {name: getattr(config, name, None) for name in ("max_position_embeddings", *_WINDOWS)}
    found = ", ".join(f"{name} {value}" for name, value in fields.items() if value is not None)
    return f"{found}: sequences of {longest} tokens at most, and training takes {LEAST_TOKENS} at least"


def empty_windows(config: PretrainedConfig) -> list[str]:
    """Return the fields that give a model a window of 0 tokens, unless the model treats 0 as no window."""
    windows = {name: getattr(config, name, None) for name in _WINDOWS}
    return [name for name, tokens in windows.items() if isinstance(tokens, int) and tokens <= 0]


@dataclass(frozen=True)
class SharedBase:
    """A frozen causal language model or sequence classifier, ready for adapters.

    Attributes:
        directory: directory of its files.
        model: the model, with the linear layers in ``sites``, and for a classifier the head in ``heads``, in
            place of its own.
        tokenizer: tokenizer of the model.
        objective: objective of its training.
        sites: layers that can have an adapter, by dotted name.
        heads: modules that each task trains in full: the classifier's head; empty for language models.
        frozen_layers: number of first layers that can have no adapter.
        address: name by which users load the model: on the Hugging Face hub or elsewhere.
        proof: proof that its packed passes are right; None before the proof.
    """

    directory: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    objective: Objective
    sites: Mapping[str, FusedLinear]
    heads: tuple[FusedHead, ...] = ()
    frozen_layers: int = 0
    address: str = ""
    proof: Proof | None = None

    @property
    def layers(self) -> int:
        return int(self.model.config.get_text_config().num_hidden_layers)

    @property
    def head_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the head of a new task, by their names in the model."""
        return {name: tensor for head in self.heads for name, tensor in head.tensors.items()}

    @property
    def precision(self) -> str:
        """Type of the numbers of a pass, such as `bfloat16`."""
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    def layout(self, task: LoraTask, heads: int = 1) -> AdapterLayout:
        """Return the adapter layout of a task; with several heads, one that as many tasks share.

        Raises:
            ValueError: a target module matches no layer.
        """
        return AdapterLayout(task, self.sites, self.head_tensors, heads)

    def frozen(self, layers: int) -> "SharedBase":
        """Return the model without adapters on its first `layers` layers.

        Raises:
            ValueError: it has no more layers.
        """
        if layers >= self.layers:
            raise ValueError(f"{layers} layers cannot be frozen, the base model has {self.layers}")
        sites = {name: site for name, site in self.sites.items() if (layer_of(name) or 0) >= layers}
        return replace(self, sites=sites, frozen_layers=layers) if layers else self

    @property
    def longest_sequence_tokens(self) -> int:
        """Longest sequence that the model processes whole."""
        return longest_sequence_tokens(self.model.config.get_text_config(), self.objective.position_offset)


def layer_of(name: str) -> int | None:
    """Return the number of the layer of a module or parameter, by its dotted name; None outside of layers."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)
