"""Module names of the supported families of models, and the steps of a part of their forward.

The steps are those of transformers' own ``forward``, in the same order, so that a stage's results are bit by
bit those of the whole model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from transformers import PreTrainedModel

from executors.lora.batch import PackedBatch


@dataclass(frozen=True)
class Family:
    """Structure of a decoder, as dotted names of its modules.

    Attributes:
        layers: the list of decoder layers.
        tokens: embeddings of tokens.
        positions: learned embeddings of positions, added to those of tokens; None without any.
        rotary: module that computes rotary positions, on every stage; None if positions are learned.
        norm: norm between the last layer and the head.
    """

    layers: str
    tokens: str
    positions: str | None
    rotary: str | None
    norm: str

    @property
    def beginning(self) -> tuple[str, ...]:
        """Return the modules of the first stage besides its layers."""
        return (self.tokens,) if self.positions is None else (self.tokens, self.positions)

    def embed(self, model: PreTrainedModel, batch: PackedBatch) -> Tensor:
        """Return the hidden states ``[1, T, features]`` of a batch of T tokens."""
        hidden = model.get_submodule(self.tokens)(batch.input_ids)
        if self.positions is not None:
            hidden = hidden + model.get_submodule(self.positions)(batch.position_ids)
        return cast(Tensor, hidden)

    def run(
        self, model: PreTrainedModel, layers: Sequence[nn.Module], hidden: Tensor, batch: PackedBatch
    ) -> Tensor:
        """Run hidden states ``[1, T, features]`` through some layers."""
        extra: dict[str, Any] = {}
        if self.rotary is not None:
            rotary = model.get_submodule(self.rotary)
            extra["position_embeddings"] = rotary(hidden, position_ids=batch.position_ids)
        for layer in layers:
            hidden = layer(
                hidden,
                attention_mask=None,
                position_ids=batch.position_ids,
                sequence_runs=batch.sequence_runs,
                use_cache=False,
                **extra,
            )
        return hidden

    def outputs(self, model: PreTrainedModel, hidden: Tensor, rows: Tensor) -> Tensor:
        """Return the inputs of the head, ``[rows, features]``, for some rows of the last layer's output."""
        return cast(Tensor, model.get_submodule(self.norm)(hidden)[0, rows])


_LLAMA = Family(
    layers="model.layers",
    tokens="model.embed_tokens",
    positions=None,
    rotary="model.rotary_emb",
    norm="model.norm",
)
_GPT2 = Family(
    layers="transformer.h",
    tokens="transformer.wte",
    positions="transformer.wpe",
    rotary=None,
    norm="transformer.ln_f",
)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gpt2": _GPT2,
}
"""Families, by the ``model_type`` of a model's configuration."""
