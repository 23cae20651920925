"""Structure of a base model that is cut into stages, and the steps of a part of its forward.

The steps are those of transformers' own ``forward``, in the same order, so that a stage's results are bit by
bit those of the whole model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from executors.lora.batch import PackedBatch
from executors.lora.model_kind import BaseModelError
from executors.lora.shared_base import SharedBase
from executors.tuner.pipeline.partition import cut


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


@dataclass(frozen=True)
class Structure:
    """A base model and its module names.

    Attributes:
        base: the engine's base model.
        family: module names of the model.
        dtype: type of the parameters and of the hidden states between stages.
    """

    base: SharedBase
    family: Family
    dtype: torch.dtype

    def frozen(self, layers: int) -> "Structure":
        """Return the model without adapters on its first `layers` layers.

        Raises:
            ValueError: it has no more layers.
        """
        return replace(self, base=self.base.frozen(layers))

    @property
    def layers(self) -> Sequence[nn.Module]:
        modules = self.base.model.get_submodule(self.family.layers)
        assert isinstance(modules, nn.ModuleList), "all supported families keep their layers in a list"
        return list(modules)

    def logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """Return the logits ``[rows, classes]`` of some rows of the last layer's output, ``[1, T,
        features]``."""
        model = self.base.model
        return self.base.objective.logits(model, self.family.outputs(model, hidden, rows))

    def sites_of(self, layers: range) -> tuple[str, ...]:
        """Return the names of the linear layers in some decoder layers, in the model's order."""
        inside = tuple(f"{self.family.layers}.{number}." for number in layers)
        return tuple(name for name in self.base.sites if name.startswith(inside))


def structure_of(base: SharedBase) -> Structure:
    """Return the structure of a model that is loaded as a whole.

    Raises:
        BaseModelError: its family cannot be cut.
    """
    model_type = base.model.config.model_type
    family = FAMILIES.get(model_type)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise BaseModelError(f"{base.directory}: a {model_type!r} cannot be cut into stages; {known} can")
    return Structure(base, family, next(base.model.parameters()).dtype)


def parameter_costs(structure: Structure) -> list[int]:
    """Return the costs of the layers for `cut`: their parameters; the last one includes those of the head.

    A matrix product costs one multiplication per token and element of the matrix. Embeddings cost nothing.
    The head runs only on tokens that bear loss, so its cost is too high if these are few.
    """
    costs = [sum(parameter.numel() for parameter in layer.parameters()) for layer in structure.layers]
    head = structure.base.model.get_submodule(structure.base.objective.head_name)
    costs[-1] += sum(parameter.numel() for parameter in head.parameters())
    return costs


def partition_by_parameters(structure: Structure, stages: int) -> tuple[range, ...]:
    """Cut a model so that the largest stage is as small as possible.

    Raises:
        PartitionError: it has fewer layers than stages.
    """
    return cut(parameter_costs(structure), stages)
