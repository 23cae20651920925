"""The feed-forward networks of the experts of one layer, by sorted, grouped matrix products.

Rows are sorted by expert, so each expert's are one range, and an expert without rows has no cost. On CUDA in
bfloat16, one ``torch.nn.functional.grouped_mm`` computes all; otherwise there is one product for each expert
with rows. On a CPU a call costs a few microseconds and grouped_mm loops as well.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import grouped_mm
from transformers.activations import ACT2FN

_GROUPED_ALIGNMENT_BYTES = 16
_ONES = 8
"""Fewest columns of two bytes that are aligned."""


def grouped_linear(rows: Tensor, weight: Tensor, bias: Tensor | None, counts: Tensor) -> Tensor:
    """Apply to each row the linear layer of its expert.

    Under autocast the products have its data type, like those of a linear layer.

    Args:
        rows: ``(pairs, in_features)``, sorted by expert.
        weight: ``(experts, out_features, in_features)``.
        bias: ``(experts, out_features)``.
        counts: ``(experts,)`` int64, rows of each expert.

    Returns:
        ``(pairs, out_features)``. The gradients of an expert without rows are zeros.

    Raises:
        ValueError: the counts do not fit the rows or the experts.
    """
    if counts.shape != weight.shape[:1]:
        raise ValueError(f"counts of shape {tuple(counts.shape)} for {len(weight)} experts")
    if torch.is_autocast_enabled(rows.device.type):
        dtype = torch.get_autocast_dtype(rows.device.type)
        rows, weight = rows.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    linear = _GroupedLinear if _is_grouped_on_device(rows, weight) else _LoopedLinear
    outputs: Tensor = linear.apply(rows, weight, bias, counts)
    return outputs


def _is_grouped_on_device(rows: Tensor, weight: Tensor) -> bool:
    return (
        rows.is_cuda
        and rows.dtype == torch.bfloat16
        and torch.cuda.get_device_capability(rows.device) >= (8, 0)
        and all(size * rows.element_size() % _GROUPED_ALIGNMENT_BYTES == 0 for size in weight.shape[1:])
    )


class _LoopedLinear(torch.autograd.Function):
    """One product for each expert that has rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, counts: Tensor) -> Tensor:
        sizes = counts.tolist()
        if sum(sizes) != len(rows):
            raise ValueError(f"counts of {sum(sizes)} rows in all, but there are {len(rows)} rows")
        ctx.sizes = sizes
        ctx.save_for_backward(rows, weight)
        outputs = rows.new_empty(len(rows), weight.shape[1])
        for expert, (part, out) in _parts(sizes, rows, outputs):
            if bias is None:
                torch.mm(part, weight[expert].t(), out=out)
            else:
                torch.addmm(bias[expert], part, weight[expert].t(), out=out)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        rows_needed, weight_needed, bias_needed, _ = ctx.needs_input_grad
        rows_gradient = torch.empty_like(rows) if rows_needed else None
        weight_gradient = weight.new_empty(weight.shape) if weight_needed else None
        bias_gradient = gradient.new_empty(weight.shape[:2]) if bias_needed else None
        for expert, size in enumerate(ctx.sizes):
            if not size:
                for of_experts in (weight_gradient, bias_gradient):
                    if of_experts is not None:
                        of_experts[expert].zero_()
        for expert, (part, part_gradient) in _parts(ctx.sizes, rows, gradient):
            if weight_gradient is not None:
                torch.mm(part_gradient.t(), part, out=weight_gradient[expert])
            if bias_gradient is not None:
                torch.sum(part_gradient, dim=0, out=bias_gradient[expert])
        if rows_gradient is not None:
            for expert, (out, part_gradient) in _parts(ctx.sizes, rows_gradient, gradient):
                torch.mm(part_gradient, weight[expert], out=out)
        return rows_gradient, weight_gradient, bias_gradient, None


def _parts(sizes: list[int], *tensors: Tensor) -> list[tuple[int, tuple[Tensor, ...]]]:
    """Return the ranges of the experts that have rows, with the experts' numbers."""
    split = zip(*(tensor.split(sizes) for tensor in tensors), strict=True)
    return [(expert, parts) for expert, parts in enumerate(split) if sizes[expert]]


class _GroupedLinear(torch.autograd.Function):
    """One grouped product for all experts, without waiting for the counts."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, counts: Tensor) -> Tensor:
        ends = counts.cumsum(0).to(torch.int32)
        ctx.save_for_backward(rows, weight, ends)
        outputs = grouped_mm(rows, weight.transpose(1, 2), offs=ends)
        if bias is not None:
            outputs += bias.repeat_interleave(counts, dim=0, output_size=len(rows))
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, ends = ctx.saved_tensors
        rows_needed, weight_needed, bias_needed, _ = ctx.needs_input_grad
        gradient = gradient.contiguous()  # grouped_mm does not support expanded rows
        return (
            grouped_mm(gradient, weight, offs=ends) if rows_needed else None,
            grouped_mm(gradient.t(), rows, offs=ends) if weight_needed else None,
            # Sums over rows are products with ones, which add up in float32 for any type.
            grouped_mm(gradient.t(), torch.ones_like(gradient[:, :_ONES]), offs=ends)[..., 0]
            if bias_needed
            else None,
            None,
        )


class Experts(nn.Module):
    """Two-layer feed-forward networks (Eq. 5.1), one for each expert.

    The weights of all experts are 3-d parameters, named and laid out as Hugging Face's, so PEFT's
    ``target_parameters`` adapts them:

    - ``up_proj`` ``(experts, intermediate, hidden)``; in a gated network (SwiGLU) ``gate_up_proj``
      ``(experts, 2 * intermediate, hidden)`` instead, the gate's rows first;
    - ``down_proj`` ``(experts, hidden, intermediate)``;
    - with biases, the same names with ``_bias``, without the last dimension.

    They are uninitialised until ``initialize_`` or a copy fills them.
    """

    down_proj_bias: nn.Parameter | None

    def __init__(
        self,
        experts: int,
        hidden: int,
        intermediate: int,
        *,
        activation: str,
        gated: bool = False,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        """Allocate the weights.

        Args:
            activation: its name in Hugging Face configurations.
            gated: whether the activated half multiplies the other.
            dropout: dropout of the intermediate features, in training.

        Raises:
            ValueError: there is no expert, or the activation is unknown.
        """
        super().__init__()
        if experts < 1:
            raise ValueError(f"a layer of {experts} experts; it needs at least one")
        if activation not in ACT2FN:
            raise ValueError(f"activation {activation!r} is not in transformers")
        self.activation: nn.Module = ACT2FN[activation]
        self.dropout = nn.Dropout(dropout)
        self.gated = gated
        self.inward_name = "gate_up_proj" if gated else "up_proj"
        inward = 2 * intermediate if gated else intermediate
        self.register_parameter(self.inward_name, nn.Parameter(torch.empty(experts, inward, hidden)))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, intermediate))
        inward_bias = nn.Parameter(torch.empty(experts, inward)) if bias else None
        self.register_parameter(f"{self.inward_name}_bias", inward_bias)
        self.register_parameter(
            "down_proj_bias", nn.Parameter(torch.empty(experts, hidden)) if bias else None
        )

    @torch.no_grad()
    def initialize_(self, standard_deviation: float, generator: torch.Generator) -> None:
        """Draw each expert's weights, as Hugging Face does: normally distributed, and biases of zero."""
        for name, parameter in self.named_parameters():
            if name.endswith("_bias"):
                parameter.zero_()
            else:
                parameter.normal_(0.0, standard_deviation, generator=generator)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Apply to each row the network of its expert.

        An expert without rows has no cost; its gradients are zeros.

        Args:
            rows: ``(pairs, hidden)``, sorted by expert.
            counts: ``(experts,)`` int64, rows of each expert.

        Returns:
            ``(pairs, hidden)``.

        Raises:
            ValueError: the counts do not fit the rows or the experts.
        """
        inward: Tensor = getattr(self, self.inward_name)
        inward_bias: Tensor | None = getattr(self, f"{self.inward_name}_bias")
        features = grouped_linear(rows, inward, inward_bias, counts)
        if self.gated:
            gate, up = features.chunk(2, dim=-1)
            features = self.activation(gate) * up
        else:
            features = self.activation(features)
        return grouped_linear(self.dropout(features), self.down_proj, self.down_proj_bias, counts)
