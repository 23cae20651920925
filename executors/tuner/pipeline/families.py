"""Where the supported families of models keep their parts, and how a part of their forward is run.

The steps are those of transformers' own ``forward``, in the same order, so that a stage computes bit by bit
what the whole model would.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from transformers import PreTrainedModel

from executors.lora.batch import PackedBatch


@dataclass(frozen=True)
class Family:
    """The anatomy of a decoder, as dotted names of its modules.

    Attributes:
        layers: the list of decoder layers.
        tokens: embeddings of tokens.
        positions: learned embeddings of positions, added to those of tokens; None where there are none.
        rotary: what computes rotary positions, on every stage; None where positions are learned.
        norm: what follows the last layer, before the head.
    """

    layers: str
    tokens: str
    positions: str | None
    rotary: str | None
    norm: str

    @property
    def beginning(self) -> tuple[str, ...]:
        """What the first stage has besides its layers."""
        return (self.tokens,) if self.positions is None else (self.tokens, self.positions)

    def embed(self, model: PreTrainedModel, batch: PackedBatch) -> Tensor:
        """Hidden states ``[1, T, features]`` of a batch of T tokens."""
        hidden = model.get_submodule(self.tokens)(batch.input_ids)
        if self.positions is not None:
            hidden = hidden + model.get_submodule(self.positions)(batch.position_ids)
        return cast(Tensor, hidden)

    def run(
        self, model: PreTrainedModel, layers: Sequence[nn.Module], hidden: Tensor, batch: PackedBatch
    ) -> Tensor:
        """Take hidden states ``[1, T, features]`` through some layers."""
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
        """What goes into the head, ``[rows, features]``, of some rows of what the last layer gives."""
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
"""By the ``model_type`` of a model's configuration."""
