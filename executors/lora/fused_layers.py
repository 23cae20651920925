"""Layers of the base model that serve many LoRA adapters. In a linear layer, each adapter is applied only to
its own rows. Of a classifier's head, each task has a copy that is trained in full.

The method of one shared base pass for many adapters is that of ASPEN/mLoRA (arXiv 2312.02515).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from executors.lora.randomness import Masks
from executors.lora.segment_products import Rows, SegmentProducts

HeadUse = tuple[Mapping[str, Tensor], int]
"""A head's parameters, by their names in the model, and its number of rows."""


@dataclass(frozen=True)
class SiteAdapter:
    """One task's adapter at one layer, for one batch.

    Attributes:
        down: LoRA's A, ``[rank, in_features]``; a leaf that gets the gradient.
        up: LoRA's B transposed, ``[rank, out_features]``; a leaf too.
        scaling: factor on the update ``B A``.
        dropout: probability of dropping an input feature.
        masks: the task's own source of dropout masks.
        rows: the task's token range in the batch.
    """

    down: Tensor
    up: Tensor
    scaling: float
    dropout: float
    masks: Masks
    rows: Rows

    @property
    def rank(self) -> int:
        """Width of the update."""
        return self.down.shape[0]

    @property
    def gain(self) -> float:
        """Scale of the update, with the factor that compensates for dropped features."""
        return self.scaling / (1.0 - self.dropout)


@dataclass(frozen=True)
class SiteBatch:
    """All adapters that take part in a batch of ``row_count`` rows at one layer.

    ``products`` computes their products.
    """

    row_count: int
    adapters: tuple[SiteAdapter, ...]
    products: SegmentProducts

    def draw_mask(self, rows: int, columns: int, device: torch.device) -> Tensor | None:
        """Return the mask of inputs ``[rows, columns]`` that the adapters keep, or ``None`` if they keep all.

        Each task draws from its own generator and for its own rows only, so its masks do not depend on the
        other tasks of the batch.
        """
        if not any(adapter.dropout for adapter in self.adapters):
            return None
        mask = torch.ones(rows, columns, dtype=torch.bool, device=device)
        for adapter in self.adapters:
            if adapter.dropout:
                start, stop = adapter.rows
                mask[start:stop] = adapter.masks.draw(stop - start, columns, adapter.dropout)
        return mask


class FusedLinear(nn.Module):
    """Replaces a linear layer of the base model and adds the adapters of the current batch.

    Attributes:
        base_layer: the frozen layer, ``nn.Linear`` or the ``Conv1D`` of GPT-2.
        batch: adapters of the current batch; ``None`` for the layer alone.
    """

    def __init__(self, base_layer: nn.Linear | Conv1D) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.batch: SiteBatch | None = None

    @property
    def weight(self) -> Tensor:
        """Frozen weight as ``[out_features, in_features]``."""
        weight = self.base_layer.weight
        return weight.t() if self.is_transposed else weight

    @property
    def is_transposed(self) -> bool:
        """Whether the base layer stores its weight as ``[in_features, out_features]``."""
        return isinstance(self.base_layer, Conv1D)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``[..., in_features]`` to ``[..., out_features]``; leading dimensions flatten to the rows.

        Raises:
            RuntimeError: the rows differ from those of the batch, as in an expert behind a router.
        """
        if self.batch is None:
            outputs: Tensor = self.base_layer(inputs)
            return outputs
        if inputs.shape[:-1].numel() != self.batch.row_count:
            raise RuntimeError("an adapted layer must see every token of the batch exactly once")
        device_type = inputs.device.type
        if torch.is_autocast_enabled(device_type):
            inputs = inputs.to(torch.get_autocast_dtype(device_type))
        adapters = self.batch.adapters
        factors = [a.down for a in adapters] + [a.up for a in adapters]
        bias = self.base_layer.bias
        outputs = _FusedLinearFunction.apply(inputs.flatten(0, -2), self.weight, bias, self.batch, *factors)
        shaped: Tensor = outputs.unflatten(0, inputs.shape[:-1])
        return shaped


class _FusedLinearFunction(torch.autograd.Function):
    """``y = x W^T + b``, plus ``gain_k (mask_k * x_k) A_k^T B_k^T`` on the rows of each task k.

    Written out, because autograd would compute and add each task's update as separate tensors: here they are
    added in place, and only the input, the mask and the narrow products are kept.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, batch: SiteBatch, *factors: Tensor
    ) -> Tensor:
        dtype, products = inputs.dtype, batch.products
        weight = weight.to(dtype)
        downs, ups = _halves([factor.to(dtype) for factor in factors])
        down, up = products.gather(downs), products.gather(ups)
        rows, columns = inputs.shape
        mask = batch.draw_mask(rows, columns, inputs.device)
        narrow = products.narrow(products.parts(_kept(inputs, mask)), down)
        outputs = linear(inputs, weight, None if bias is None else bias.to(dtype))
        products.add_widened_(products.parts(outputs), narrow, up)
        ctx.save_for_backward(inputs, weight, mask)
        # These are neither inputs nor outputs of this function, so attributes suffice.
        ctx.products, ctx.down, ctx.up, ctx.narrow = products, down, up, narrow
        ctx.shapes = [factor.shape for factor in factors]
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, mask = ctx.saved_tensors
        products = ctx.products
        output_gradient = output_gradient.contiguous()
        output_parts = products.parts(output_gradient)
        up_gradients = products.gradients(ctx.narrow, output_parts)
        narrow_gradient = products.narrow(output_parts, ctx.up)
        down_gradients = products.gradients(narrow_gradient, products.parts(_kept(inputs, mask)))

        input_gradient = None
        if ctx.needs_input_grad[0]:
            input_gradient = output_gradient @ weight
            through_adapters = input_gradient if mask is None else torch.zeros_like(input_gradient)
            products.add_widened_(products.parts(through_adapters), narrow_gradient, ctx.down)
            if mask is not None:
                input_gradient.add_(through_adapters.mul_(mask))
        factor_gradients = map(_without_padding, (*down_gradients, *up_gradients), ctx.shapes)
        return input_gradient, None, None, None, *factor_gradients


def _halves(factors: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    middle = len(factors) // 2
    return factors[:middle], factors[middle:]


def _kept(inputs: Tensor, mask: Tensor | None) -> Tensor:
    return inputs if mask is None else inputs * mask


def _without_padding(gradient: Tensor, shape: torch.Size) -> Tensor:
    return gradient[: shape[0]]


class FusedHead(nn.Module):
    """Replaces the head of the base model: each task's rows use the task's own head.

    Attributes:
        name: dotted name in the model.
        base_head: initial head of each task.
        uses: heads of the current batch, in the order of its rows; empty for the base head.
    """

    def __init__(self, name: str, base_head: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.base_head = base_head
        self.uses: Sequence[HeadUse] = ()

    @classmethod
    def put_into(cls, model: nn.Module, name: str) -> Self:
        """Replace the head with this name in a model."""
        head = cls(name, model.get_submodule(name))
        model.set_submodule(name, head)
        return head

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Return the initial parameters of each task's head, by their names in the model."""
        return {f"{self.name}.{name}": tensor for name, tensor in self.base_head.named_parameters()}

    def forward(self, inputs: Tensor) -> Tensor:
        """Map pooled outputs ``[N, ...]`` to logits ``[N, classes]``."""
        if not self.uses:
            outputs: Tensor = self.base_head(inputs)
            return outputs
        parts = inputs.split([rows for _, rows in self.uses])
        return torch.cat([self._own(head, part) for (head, _), part in zip(self.uses, parts, strict=True)])

    def _own(self, head: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        parameters = {name.removeprefix(f"{self.name}."): tensor for name, tensor in head.items()}
        outputs: Tensor = functional_call(self.base_head, parameters, (inputs,))
        return outputs
