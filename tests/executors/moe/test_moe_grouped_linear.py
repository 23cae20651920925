"""Both ways of computing the experts' linear layers, against one layer for each expert."""

import pytest
import torch
from torch.nn.functional import linear

from executors.moe.experts import _GroupedLinear, _LoopedLinear, grouped_linear

COUNTS = torch.tensor([3, 0, 5, 1, 0])


@pytest.mark.parametrize("way", [_GroupedLinear, _LoopedLinear])
@pytest.mark.parametrize("bias", [True, False])
def test_row_goes_through_layer_of_expert(way: type[torch.autograd.Function], bias: bool) -> None:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).requires_grad_()

    leaves = [draw(9, 8), draw(5, 16, 8), *([draw(5, 16)] if bias else [])]
    rows, weight, biases = (*leaves, None)[:3]
    whole = [
        linear(part, weight[expert], biases[expert] if bias else None)
        for expert, part in enumerate(rows.split(COUNTS.tolist()))
    ]
    outward = torch.randn(9, 16, generator=generator)

    def with_gradients(outputs: torch.Tensor) -> list[torch.Tensor]:
        return [outputs, *torch.autograd.grad(outputs, leaves, outward)]

    ours = with_gradients(way.apply(rows, weight, biases, COUNTS))
    for one, other in zip(ours, with_gradients(torch.cat(whole)), strict=True):
        torch.testing.assert_close(one, other)


def test_no_rows_at_all_give_gradients_of_zero() -> None:
    weight = torch.randn(2, 4, 3, requires_grad=True)
    outputs = grouped_linear(torch.zeros(0, 3), weight, None, torch.tensor([0, 0]))
    outputs.sum().backward()
    assert outputs.shape == (0, 4)
    assert weight.grad is not None
    assert not weight.grad.any()
