"""Adaptive gating instead of the layers of Hugging Face's own mixture-of-experts models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor, nn
from transformers import MixtralModel, PretrainedConfig, PreTrainedModel
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersSparseMLP,
    SwitchTransformersStack,
)

from executors.moe.block import MoeBlock, Router, watch_padding
from executors.moe.experts import Experts
from executors.moe.gating import ExpertWeights, Gating
from schemas.experts.workload import GatingMode

NamedTensors = dict[str, Tensor]


@dataclass(frozen=True)
class SparseFamily:
    """Mixture-of-experts models of one kind.

    Attributes:
        stack: module of the layers, which is called with the attention mask.
        layer: the mixture-of-experts layer.
        weights: factors of the outputs of a token's experts.
        experts_of_token: returns the number of experts of each token in a model of its configuration.
        adopt: converts one of their layers into one of ours, with the same parameters.
        publish: converts the parameters of one of our layers, by name, into theirs.
    """

    stack: type[nn.Module]
    layer: type[nn.Module]
    weights: ExpertWeights
    experts_of_token: Callable[[PretrainedConfig], int]
    adopt: Callable[[nn.Module, PreTrainedModel, Gating], MoeBlock]
    publish: Callable[[NamedTensors], NamedTensors]


def _adopt_mixtral(layer: nn.Module, model: PreTrainedModel, gating: Gating) -> MoeBlock:
    router_weight = layer.get_parameter("gate.weight")
    inward, outward = (layer.get_parameter(f"experts.{name}") for name in ("gate_up_proj", "down_proj"))
    experts, hidden, intermediate = outward.shape
    with torch.device("meta"):
        block = MoeBlock(
            Router(hidden, experts),
            gating,
            Experts(experts, hidden, intermediate, activation=model.config.hidden_act, gated=True),
        )
    ours = {"router.weight": router_weight, "experts.gate_up_proj": inward, "experts.down_proj": outward}
    block.load_state_dict(ours, assign=True)
    return block


def _publish_mixtral(ours: NamedTensors) -> NamedTensors:
    return {name.replace("router.", "gate."): tensor for name, tensor in ours.items()}


def _adopt_switch(layer: nn.Module, model: PreTrainedModel, gating: Gating) -> MoeBlock:
    config = model.config
    router = {
        name.replace("classifier", "router"): parameter
        for name, parameter in layer.get_submodule("router").named_parameters()
    }
    theirs = [layer.get_submodule(f"experts.expert_{number}") for number in range(config.num_experts)]
    inward = torch.stack([expert.get_parameter("wi.weight").detach() for expert in theirs])
    outward = torch.stack([expert.get_parameter("wo.weight").detach() for expert in theirs])
    with torch.device("meta"):
        block = MoeBlock(
            Router(config.d_model, config.num_experts, bias=config.router_bias),
            gating,
            Experts(
                config.num_experts,
                config.d_model,
                config.d_ff,
                activation=config.dense_act_fn,
                dropout=config.dropout_rate,
            ),
        )
    ours = {**router, "experts.up_proj": inward, "experts.down_proj": outward}
    block.load_state_dict(ours, assign=True)
    return block


def _publish_switch(ours: NamedTensors) -> NamedTensors:
    theirs = {}
    for name, tensor in ours.items():
        if name.startswith("router."):
            theirs[name.replace("router.", "router.classifier.")] = tensor
            continue
        linear = {"experts.up_proj": "wi", "experts.down_proj": "wo"}[name]
        for number, weight in enumerate(tensor):
            theirs[f"experts.expert_{number}.{linear}.weight"] = weight.clone()
    return theirs


SPARSE_FAMILIES: Mapping[str, SparseFamily] = MappingProxyType(
    {
        "mixtral": SparseFamily(
            MixtralModel,
            MixtralSparseMoeBlock,
            "normalized",
            lambda config: int(config.num_experts_per_tok),
            _adopt_mixtral,
            _publish_mixtral,
        ),
        "switch_transformers": SparseFamily(
            SwitchTransformersStack,
            SwitchTransformersSparseMLP,
            "probability",
            lambda _: 1,
            _adopt_switch,
            _publish_switch,
        ),
    }
)
"""Families, by the ``model_type`` of a model's configuration."""


def family_of(config: PretrainedConfig) -> SparseFamily:
    """Return the family of a mixture-of-experts model, by its configuration.

    Raises:
        ValueError: it has no experts, or is of an unknown family.
    """
    kind = config.model_type
    if kind not in SPARSE_FAMILIES:
        known = ", ".join(sorted(SPARSE_FAMILIES))
        raise ValueError(
            f"a model of type {kind!r} has no experts, as {known} models have: convert it (conversion)"
        )
    return SPARSE_FAMILIES[kind]


def own_gating(config: PretrainedConfig) -> Gating:
    """Return the gating with which transformers computes a mixture-of-experts model.

    Raises:
        ValueError: the model is of another kind, or a token gets more than two experts.
    """
    family = family_of(config)
    count = family.experts_of_token(config)
    modes: Mapping[int, GatingMode] = {1: "top1", 2: "top2"}
    if count not in modes:
        raise ValueError(f"num_experts_per_tok is {count}: a token may have one expert or two")
    return Gating(modes[count], weights=family.weights)


def adopt(model: PreTrainedModel, gating: Gating) -> None:
    """Replace a model's own mixture-of-experts layers by ours, in the model itself.

    With the model's own gating, they compute the same from the same parameters, except that no token is
    dropped for lack of capacity (Switch), and that routers get no jitter. The weights of the experts' outputs
    are those of the model's training, whatever ``gating.weights`` is. The model no longer returns router
    logits or adds a balance loss of its own: see `executors.moe.block.auxiliary_loss`.

    Raises:
        ValueError: the model is of another kind, has no such layer, or has too few experts for the gating.
    """
    family = family_of(model.config)
    gating = replace(gating, weights=family.weights)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, family.layer)}
    if not layers:
        raise ValueError(f"the {model.config.model_type} model has no mixture-of-experts layer")
    for name, layer in layers.items():
        block = family.adopt(layer, model, gating)
        experts = len(block.router.get_parameter("weight"))
        if experts < gating.fewest_experts:
            raise ValueError(
                f"{gating.mode} gating needs at least {gating.fewest_experts} experts, {name} has {experts}"
            )
        model.set_submodule(name, block.train(model.training))
    for module in model.modules():
        if isinstance(module, family.stack):
            watch_padding(module)
    model.config.output_router_logits = False


def published_state(model: PreTrainedModel) -> NamedTensors:
    """Return the parameters of a model with adopted layers, by the names of the model's own layers.

    Raises:
        ValueError: the model is of another kind.
    """
    family = family_of(model.config)
    state: NamedTensors = dict(model.state_dict())
    for name, block in model.named_modules():
        if isinstance(block, MoeBlock):
            ours = {key: state.pop(f"{name}.{key}") for key in block.state_dict()}
            state |= {f"{name}.{key}": tensor for key, tensor in family.publish(ours).items()}
    return state
