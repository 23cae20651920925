"""Experts of a layer without the layer: a part of them hosted, with their part of an adapter.

A rank hosts some experts of each layer. So tensors of experts are stacked by expert, `(experts, ...)`, and a
rank has its rows. In the whole model, PEFT stores the two factors of an adapter on stacked weights as
matrices for all experts together; `ExpertTensor` converts one form into the other.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from peft.tuners.lora.layer import ParamWrapper
from torch import Tensor, nn
from torch.func import functional_call

from executors.moe.block import MoeBlock
from executors.moe.parallel.offloading import OffloadedExperts, place
from executors.moe.parallel.packing import ExpertBytes

Pieces = Sequence[nn.Parameter]
"""Tensors of the hosted experts: one stacked tensor of the resident experts, if any, and one tensor in the
host's memory for each other expert."""
_HALF_BYTES = torch.bfloat16.itemsize
_OF_TRAINED = 4
"""Size of a parameter with its gradient and AdamW's two moments, in sizes of the parameter."""
_Form = Literal["stacked", "inward factor", "outward factor"]


@dataclass(frozen=True)
class ExpertTensor:
    """A parameter of all experts of a layer, or an optimizer's tensor for one.

    Attributes:
        name: its name in the whole model.
        part: its name in the hosted experts.
        form: its form in the whole model: `stacked`, as here; or a factor of PEFT's, `(experts * rank, in)`
            or `(out, rank * experts)`.
        shape: its shape in the whole model.
        is_trained: whether it changes.
    """

    name: str
    part: str
    form: _Form
    shape: tuple[int, ...]
    is_trained: bool

    def stacked(self, whole: Tensor, experts: int) -> Tensor:
        """Return the form stacked by expert: `(experts, rank, in)`, `(experts, out, rank)`, or unchanged."""
        if self.form == "inward factor":
            return whole.view(experts, -1, whole.shape[1])
        if self.form == "outward factor":
            return whole.view(whole.shape[0], -1, experts).permute(2, 0, 1)
        return whole

    def whole(self, stacked: Tensor) -> Tensor:
        """Return the whole model's form: the inverse of `stacked`."""
        if self.form == "inward factor":
            return stacked.flatten(0, 1)
        if self.form == "outward factor":
            return stacked.permute(1, 2, 0).flatten(1)
        return stacked


class HostedExperts(nn.Module):
    """Some experts of a layer, and their part of a LoRA adapter: weights `(experts, out, in)` plus a scaled
    product of factors `(experts, out, rank)` and `(experts, rank, in)`, as in PEFT."""

    def __init__(
        self, experts: nn.Module, factors: Mapping[str, tuple[Tensor, Tensor]], scaling: Mapping[str, float]
    ) -> None:
        """Combine experts and factors.

        Args:
            factors: inward and outward factors, by the name of the adapted weight.
            scaling: scaling of the product, by the name of the weight.
        """
        super().__init__()
        self.experts = experts
        self.inward = nn.ParameterDict({name: pair[0] for name, pair in factors.items()})
        self.outward = nn.ParameterDict({name: pair[1] for name, pair in factors.items()})
        self._scaling = dict(scaling)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Apply to each row the network of its expert, like `Experts.forward`. Outputs have the type of the
        rows, under autocast too, since rows, outputs and gradients are exchanged in one type."""
        adapted = {
            # An expert from the host's memory computes with copies, which are not parameters.
            name: torch.baddbmm(
                getattr(self.experts, name), self.outward[name], self.inward[name], alpha=scale
            )
            for name, scale in self._scaling.items()
        }
        outputs: Tensor = functional_call(self.experts, adapted, (rows, counts))
        return outputs.to(rows.dtype)


class LayerExperts:
    """Experts of one layer, removed from a whole model.

    Attributes:
        count: number of the layer's experts.
        hidden: features of a token.
        tensors: all tensors of the experts.
    """

    def __init__(self, layer: str, block: MoeBlock) -> None:
        """Remove them from a block.

        Args:
            layer: the block's dotted name in its model.
        """
        module, name = cast(nn.Module, block.experts), f"{layer}.experts"
        self.tensors: list[ExpertTensor] = []
        self._scaling: dict[str, float] = {}
        self._whole: dict[str, Tensor] = {}
        # PEFT wraps a module once for each of its adapted parameters.
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
        self._item_bytes = module.get_parameter("down_proj").element_size()
        self._skeleton = module.to("meta")
        block.experts = nn.Identity()

    def remove_tensors(self) -> dict[str, Tensor]:
        """Remove and return all tensors stacked by expert, by their `part`."""
        removed = {each.part: each.stacked(self._whole[each.part], self.count) for each in self.tensors}
        self._whole = {}
        return removed

    def bytes_of_one(self, chunks: int, *, is_autocast: bool) -> ExpertBytes:
        """Return the device memory of one of the experts.

        Args:
            chunks: chunks of a pass. If a pass computes with copies of the parameters, each chunk keeps its
                copies from the forward to the backward pass.
            is_autocast: whether products are computed in bfloat16.
        """
        sizes = {each.part: math.prod(each.shape) // self.count for each in self.tensors}
        of_all = sum(sizes.values()) * self._item_bytes
        of_trained = sum(sizes[each.part] for each in self.tensors if each.is_trained) * self._item_bytes
        adapted = sum(sizes[name] for name in self._scaling) * self._item_bytes
        weights = sum(sizes[each.part] for each in self.tensors if each.form == "stacked")
        halves = weights * _HALF_BYTES if is_autocast else 0
        copies = halves or adapted
        # While the gradients of a chunk are added, they exist twice: in the type of the products and in their
        # own. Gradients of adapted weights become gradients of factors.
        computing = of_all + halves if of_trained else 0
        return ExpertBytes(
            kept=of_all + (_OF_TRAINED - 1) * of_trained + chunks * copies,
            computing=computing,
            visiting=of_all + copies + computing,
        )

    def host(
        self, hosted: Mapping[str, Tensor], resident: int, device: torch.device
    ) -> tuple[nn.Module, dict[str, Pieces]]:
        """Return a module of the experts in the tensors, and its parameters by their `part`.

        An off-loaded expert is off-loaded as a whole, with its part of an adapter.

        Args:
            hosted: tensors stacked by expert, by their `part`.
            resident: number of experts that stay on the device. The other experts are in the host's memory.
        """
        parameters: dict[str, Pieces] = {
            each.part: [
                nn.Parameter(piece, requires_grad=each.is_trained)
                for piece in place(hosted[each.part], resident, device)
            ]
            for each in self.tensors
        }
        pieces = len(next(iter(parameters.values())))
        modules = [
            self._module({part: of_part[piece] for part, of_part in parameters.items()})
            for piece in range(pieces)
        ]
        if resident == len(next(iter(hosted.values()))):
            return modules[0], parameters
        here = modules.pop(0) if resident else None
        return OffloadedExperts(here, modules), parameters

    def _module(self, parameters: Mapping[str, nn.Parameter]) -> nn.Module:
        experts = copy.deepcopy(self._skeleton)
        for part, parameter in parameters.items():
            if part in experts._parameters:
                setattr(experts, part, parameter)
        factors = {
            name: (parameters[f"{name} inward factor"], parameters[f"{name} outward factor"])
            for name in self._scaling
        }
        return HostedExperts(experts, factors, self._scaling)

    def _add(self, name: str, part: str, form: _Form, parameter: nn.Parameter) -> None:
        shape = tuple(parameter.shape)
        self.tensors.append(ExpertTensor(name, part, form, shape, parameter.requires_grad))
        self._whole[part] = parameter.detach()
