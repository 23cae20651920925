"""Conversion of the feed-forward networks of a dense model into experts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from transformers import BertModel, GPT2Model, LlamaModel, PretrainedConfig, PreTrainedModel
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.pytorch_utils import Conv1D

from executors.moe.block import MoeBlock, Router, watch_padding
from executors.moe.experts import Experts
from executors.moe.gating import Gating
from schemas.experts.workload import Initialization


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


class LayerConversion(BaseModel):
    """Conversion of the feed-forward networks of a dense model into experts.

    Attributes:
        experts: number of experts in each converted layer.
        layers: ``all``, or ``alternate`` for every second one, beginning with the second, as in GShard; a
            number n for every n-th one, beginning with the n-th.
        initialization: ``dense``, each expert starts as the network that it replaces, with noise, so a
            trained model keeps its training: this is the default, since jobs fine-tune trained models.
            ``random`` draws new experts, as the thesis does (section 5.4.3), for training from scratch.
        noise: standard deviation of the noise on each dense weight, in standard deviations of its matrix.
            Without it, only routing would distinguish the experts.
        router_deviation: standard deviation of the routers' logits for normalised states. With one as small
            as that of a model's own weights, experts are nearly equal, so that under adaptive gating nearly
            all tokens have two for hundreds of steps; trained for thousands, as in the thesis, routers become
            sharp by themselves.
        seed: seed of routers, noise and random experts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    experts: PositiveInt = 16
    layers: Literal["all", "alternate"] | PositiveInt = "all"
    initialization: Initialization = "dense"
    noise: NonNegativeFloat = 0.01
    router_deviation: NonNegativeFloat = 2.0
    seed: int = Field(default=0, ge=0, lt=2**63)


def convert(model: PreTrainedModel, conversion: LayerConversion, gating: Gating) -> None:
    """Replace a dense model's feed-forward networks by experts, in the model itself.

    Raises:
        ValueError: the model's kind is unknown, it has no such layer, or it has too few experts for the
            gating.
    """
    family, chosen = _to_convert(model, conversion, gating)
    generator = torch.Generator().manual_seed(conversion.seed)
    for network in chosen:
        block = _new_block(model, network, conversion.experts, gating)
        deviation = float(model.config.initializer_range)
        with torch.no_grad():
            router = block.router.get_parameter("weight")
            _draw_(router, conversion.router_deviation / router.shape[1] ** 0.5, generator)
            experts = block.get_submodule("experts")
            for name, dense in _dense_parameters(model, network).items():
                _fill_(experts.get_parameter(name), dense, name, conversion, deviation, generator)
        _replace(model, network, block)
    _watch(model, family)


def convert_structure(model: PreTrainedModel, conversion: LayerConversion, gating: Gating) -> None:
    """Convert a model like `convert`, but leave routers and experts uninitialised, to load their weights.

    Raises:
        ValueError: see `convert`.
    """
    family, chosen = _to_convert(model, conversion, gating)
    for network in chosen:
        _replace(model, network, _new_block(model, network, conversion.experts, gating))
    _watch(model, family)


def converted_bytes(model: PreTrainedModel, conversion: LayerConversion, gating: Gating) -> int:
    """Return the memory of the experts that `convert` would create (bytes).

    Raises:
        ValueError: see `convert`.
    """
    _, chosen = _to_convert(model, conversion, gating)
    of_networks = (each.nbytes for network in chosen for each in _dense_parameters(model, network).values())
    return conversion.experts * sum(of_networks)


def _to_convert(
    model: PreTrainedModel, conversion: LayerConversion, gating: Gating
) -> tuple[DenseFamily, list[FeedForward]]:
    kind = model.config.model_type
    if kind not in DENSE_FAMILIES:
        known = ", ".join(sorted(DENSE_FAMILIES))
        raise ValueError(f"a model of type {kind!r} cannot be converted to experts; these can: {known}")
    if conversion.experts < gating.fewest_experts:
        raise ValueError(
            f"{gating.mode} gating needs at least {gating.fewest_experts} experts, not {conversion.experts}"
        )
    family = DENSE_FAMILIES[kind]
    networks = feed_forwards(model, family)
    layers = conversion.layers
    every = layers if isinstance(layers, int) else {"all": 1, "alternate": 2}[layers]
    chosen = networks[every - 1 :: every]
    if not chosen:
        raise ValueError(f"the model has {len(networks)} dense layers, of which none is to be converted")
    return family, chosen


def _dense_parameters(model: PreTrainedModel, network: FeedForward) -> dict[str, Tensor]:
    """Return the parameters of one expert that is equivalent to a network, by their names in `Experts`."""
    inward = [model.get_submodule(name) for name in network.inward]
    outward = model.get_submodule(network.outward)
    name = "gate_up_proj" if len(inward) == 2 else "up_proj"
    parameters = {
        name: torch.cat([linear_weight(layer) for layer in inward]),
        "down_proj": linear_weight(outward),
    }
    if outward.bias is not None:
        parameters[f"{name}_bias"] = torch.cat([layer.get_parameter("bias") for layer in inward])
        parameters["down_proj_bias"] = outward.get_parameter("bias")
    return parameters


def _new_block(model: PreTrainedModel, network: FeedForward, experts: int, gating: Gating) -> MoeBlock:
    dense = _dense_parameters(model, network)
    hidden, intermediate = dense["down_proj"].shape
    block = MoeBlock(
        Router(hidden, experts),
        gating,
        Experts(
            experts,
            hidden,
            intermediate,
            activation=network.activation,
            gated="gate_up_proj" in dense,
            bias="down_proj_bias" in dense,
        ),
        network.dropout,
    )
    like = dense["down_proj"]
    return block.to(device=like.device, dtype=like.dtype).train(model.training)


def _fill_(
    target: Tensor,
    dense: Tensor,
    name: str,
    conversion: LayerConversion,
    deviation: float,
    generator: torch.Generator,
) -> None:
    """Fill one parameter of all experts, ``(experts, ...)``."""
    is_bias = name.endswith("_bias")
    if conversion.initialization == "random":
        target.zero_() if is_bias else _draw_(target, deviation, generator)
        return
    target.copy_(dense.unsqueeze(0).expand_as(target))
    if conversion.noise and not is_bias:
        noise = torch.empty_like(target)
        _draw_(noise, conversion.noise * float(dense.float().std()), generator)
        target += noise


def _draw_(target: Tensor, deviation: float, generator: torch.Generator) -> None:
    """Draw on the CPU, so that the device has no effect."""
    target.copy_(torch.empty(target.shape).normal_(0.0, deviation, generator=generator))


def _replace(model: PreTrainedModel, network: FeedForward, block: MoeBlock) -> None:
    model.set_submodule(network.place, block)
    for name in network.bypassed:
        model.set_submodule(name, nn.Identity())


def _watch(model: PreTrainedModel, family: DenseFamily) -> None:
    for module in model.modules():
        if isinstance(module, family.stack):
            watch_padding(module)
