"""The experts of a layer apart from it: a part of them hosted, with their part of an adapter.

A rank hosts some experts of each layer. So what belongs to experts is handled as tensors stacked by expert,
`(experts, ...)`, of which a rank has its rows. In the whole model, PEFT keeps the two factors of an adapter
on stacked weights as matrices for all experts together; `ExpertTensor` turns one form into the other.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import torch
from peft.tuners.lora.layer import ParamWrapper
from torch import Tensor, nn
from torch.func import functional_call

from executors.moe.block import MoeBlock

_Form = Literal["stacked", "inward factor", "outward factor"]


@dataclass(frozen=True)
class ExpertTensor:
    """A parameter of all experts of a layer, or what an optimizer keeps of one.

    Attributes:
        name: in the whole model.
        part: what the hosted experts call it.
        form: how the whole model has it: `stacked`, as here; or as a factor of PEFT's, `(experts * rank,
            in)` or `(out, rank * experts)`.
        shape: in the whole model.
        is_trained: whether it changes.
    """

    name: str
    part: str
    form: _Form
    shape: tuple[int, ...]
    is_trained: bool

    def stacked(self, whole: Tensor, experts: int) -> Tensor:
        """Of the whole model's form, the form stacked by expert: `(experts, rank, in)`, `(experts, out,
        rank)`, or as it is."""
        if self.form == "inward factor":
            return whole.view(experts, -1, whole.shape[1])
        if self.form == "outward factor":
            return whole.view(whole.shape[0], -1, experts).permute(2, 0, 1)
        return whole

    def whole(self, stacked: Tensor) -> Tensor:
        """The way back."""
        if self.form == "inward factor":
            return stacked.flatten(0, 1)
        if self.form == "outward factor":
            return stacked.permute(1, 2, 0).flatten(1)
        return stacked


class HostedExperts(nn.Module):
    """Some experts of a layer, and their part of a LoRA adapter: to weights `(experts, out, in)` is added a
    scaled product of factors `(experts, out, rank)` and `(experts, rank, in)`, as PEFT does."""

    def __init__(
        self, experts: nn.Module, factors: Mapping[str, tuple[Tensor, Tensor]], scaling: Mapping[str, float]
    ) -> None:
        """Put both together.

        Args:
            factors: inward and outward, by the name of the weight; of weights that are adapted.
            scaling: of the product, by the name of the weight.
        """
        super().__init__()
        self.experts = experts
        self.inward = nn.ParameterDict({name: pair[0] for name, pair in factors.items()})
        self.outward = nn.ParameterDict({name: pair[1] for name, pair in factors.items()})
        self._scaling = dict(scaling)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """As `Experts.forward`, but outputs have the type of the rows under autocast, too: they travel side
        by side with them, and so do their gradients."""
        adapted = {
            name: torch.baddbmm(
                self.experts.get_parameter(name), self.outward[name], self.inward[name], alpha=scale
            )
            for name, scale in self._scaling.items()
        }
        outputs: Tensor = functional_call(self.experts, adapted, (rows, counts))
        return outputs.to(rows.dtype)


class LayerExperts:
    """The experts of one layer of a whole model, which are taken from it.

    Attributes:
        count: how many the layer has.
        hidden: features of a token.
        tensors: all that belongs to them.
    """

    def __init__(self, layer: str, block: MoeBlock) -> None:
        """Take them.

        Args:
            layer: the block's dotted name in its model.
        """
        module, name = cast(nn.Module, block.experts), f"{layer}.experts"
        self.tensors: list[ExpertTensor] = []
        self._scaling: dict[str, float] = {}
        self._whole: dict[str, Tensor] = {}
        # PEFT wraps a module once for each of its parameters that is adapted.
        while isinstance(module, ParamWrapper):
            (adapter,) = module.active_adapters
            target = module.parameter_name
            self._scaling[target] = module.scaling[adapter]
            for factor, form in (("lora_A", "inward factor"), ("lora_B", "outward factor")):
                matrix = getattr(module, factor)[adapter].weight
                self._add(f"{name}.{factor}.{adapter}.weight", f"{target} {form}", cast(_Form, form), matrix)
            module, name = module.base_layer, f"{name}.base_layer"
        for part, parameter in module.named_parameters():
            self._add(f"{name}.{part}", part, "stacked", parameter)
        self.count, self.hidden = module.get_parameter("down_proj").shape[:2]
        self._skeleton = module.to("meta")
        block.experts = nn.Identity()

    def take(self) -> dict[str, Tensor]:
        """All tensors stacked by expert, by their `part`. They are let go here."""
        taken = {each.part: each.stacked(self._whole[each.part], self.count) for each in self.tensors}
        self._whole = {}
        return taken

    def host(self, hosted: Mapping[str, Tensor]) -> tuple[nn.Module, dict[str, nn.Parameter]]:
        """A module of so many experts as the tensors have, and its parameters by their `part`.

        Args:
            hosted: tensors stacked by expert, by their `part`.
        """
        parameters = {
            each.part: nn.Parameter(hosted[each.part].contiguous(), requires_grad=each.is_trained)
            for each in self.tensors
        }
        experts = copy.deepcopy(self._skeleton)
        for part, parameter in parameters.items():
            if part in experts._parameters:
                setattr(experts, part, parameter)
        factors = {
            name: (parameters[f"{name} inward factor"], parameters[f"{name} outward factor"])
            for name in self._scaling
        }
        return HostedExperts(experts, factors, self._scaling), parameters

    def _add(self, name: str, part: str, form: _Form, parameter: nn.Parameter) -> None:
        shape = tuple(parameter.shape)
        self.tensors.append(ExpertTensor(name, part, form, shape, parameter.requires_grad))
        self._whole[part] = parameter.detach()
