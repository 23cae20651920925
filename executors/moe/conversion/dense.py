"""The feed-forward networks of dense models: their places and their modules."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor, nn
from transformers import BertModel, GPT2Model, LlamaModel, PretrainedConfig, PreTrainedModel
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.pytorch_utils import Conv1D


@dataclass(frozen=True)
class FeedForward:
    """A dense feed-forward network in a model; modules are given by dotted names.

    Attributes:
        place: module that the experts replace.
        bypassed: modules that then have no effect.
        inward: linear layers from hidden to intermediate features; in a gated network, the gate comes first.
        outward: linear layer from intermediate to hidden features.
        activation: its name in Hugging Face configurations.
        dropout: dropout of the outputs, if ``place`` has a dropout that is replaced with it.
    """

    place: str
    bypassed: tuple[str, ...]
    inward: tuple[str, ...]
    outward: str
    activation: str
    dropout: float


@dataclass(frozen=True)
class DenseFamily:
    """Dense models of one kind.

    Attributes:
        stack: module of the layers, which is called with the attention mask.
        layer: module with one feed-forward network.
        feed_forward: returns the network, for the dotted name of such a module.
    """

    stack: type[nn.Module]
    layer: type[nn.Module]
    feed_forward: Callable[[str, PretrainedConfig], FeedForward]


def _of_bert(layer: str, config: PretrainedConfig) -> FeedForward:
    # BERT's output module adds the residual, so it stays, except for its linear layer.
    outward = f"{layer}.output.dense"
    inward = f"{layer}.intermediate.dense"
    return FeedForward(f"{layer}.intermediate", (outward,), (inward,), outward, config.hidden_act, 0.0)


def _of_gpt2(layer: str, config: PretrainedConfig) -> FeedForward:
    activation, dropout = config.activation_function, config.resid_pdrop
    return FeedForward(layer, (), (f"{layer}.c_fc",), f"{layer}.c_proj", activation, dropout)


def _of_llama(layer: str, config: PretrainedConfig) -> FeedForward:
    inward = (f"{layer}.gate_proj", f"{layer}.up_proj")
    return FeedForward(layer, (), inward, f"{layer}.down_proj", config.hidden_act, 0.0)


DENSE_FAMILIES: Mapping[str, DenseFamily] = MappingProxyType(
    {
        "bert": DenseFamily(BertModel, BertLayer, _of_bert),
        "gpt2": DenseFamily(GPT2Model, GPT2MLP, _of_gpt2),
        "llama": DenseFamily(LlamaModel, LlamaMLP, _of_llama),
    }
)
"""Families, by the ``model_type`` of a model's configuration."""


def feed_forwards(model: PreTrainedModel, family: DenseFamily) -> list[FeedForward]:
    """Return the feed-forward networks of a model, in the order of its layers."""
    return [
        family.feed_forward(name, model.config)
        for name, module in model.named_modules()
        if isinstance(module, family.layer)
    ]


def linear_weight(layer: nn.Module) -> Tensor:
    """Return a linear layer's weight as ``(out_features, in_features)``."""
    weight = layer.get_parameter("weight")
    return weight.t() if isinstance(layer, Conv1D) else weight
