"""The layer on a CUDA device: grouped products, both ends of the threshold, and a reference in float64."""

import copy

import pytest
import torch
from torch import Tensor

from executors.moe.block import MoeBlock, Router, pop_passes
from executors.moe.experts import Experts, _GroupedLinear, _is_grouped_on_device, grouped_linear
from executors.moe.gating import Gating, GatingMode

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

HIDDEN, INTERMEDIATE, EXPERTS = 64, 128, 8


def block_of(gating: Gating, gated: bool = True) -> MoeBlock:
    """Return a layer on the CPU, in float64, with all parameters drawn."""
    generator = torch.Generator().manual_seed(3)
    experts = Experts(EXPERTS, HIDDEN, INTERMEDIATE, activation="silu", gated=gated, bias=True)
    block = MoeBlock(Router(HIDDEN, EXPERTS), gating, experts)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(0.0, 0.1, generator=generator)
    return block.double()


def states_of(tokens: int, seed: int = 4) -> Tensor:
    return torch.randn(1, tokens, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def outputs_and_gradients(block: MoeBlock, states: Tensor) -> list[Tensor]:
    leaf = states.clone().requires_grad_()
    outputs = block(leaf)
    weights = torch.linspace(-1, 2, outputs.numel(), device=outputs.device).view(outputs.shape)
    (outputs.double() * weights).sum().backward()
    return [outputs.detach(), leaf.grad, *(parameter.grad for parameter in block.parameters())]


def distance(ours: Tensor, truth: Tensor) -> float:
    """Return the distance relative to the norm of the reference."""
    return float((ours.cpu().double() - truth).norm() / truth.norm())


@pytest.mark.parametrize("counts", [[100, 0, 28, 1, 0, 57, 64, 6], [0] * 8, [1, 0, 0, 0, 0, 0, 0, 0]])
@pytest.mark.parametrize("bias", [True, False])
def test_grouped_products_are_those_of_a_loop(counts: list[int], bias: bool) -> None:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to("cuda", torch.bfloat16).requires_grad_()

    leaves = [draw(sum(counts), HIDDEN), draw(EXPERTS, INTERMEDIATE, HIDDEN), draw(EXPERTS, INTERMEDIATE)]
    rows, weight, biases = leaves
    assert _is_grouped_on_device(rows, weight)
    leaves = leaves if bias else leaves[:2]
    outward = torch.randn(sum(counts), INTERMEDIATE, generator=generator)
    outputs = grouped_linear(rows, weight, biases if bias else None, torch.tensor(counts, device="cuda"))
    ours = [outputs, *torch.autograd.grad(outputs, leaves, outward.to("cuda", torch.bfloat16))]
    exact = [leaf.detach().cpu().double().requires_grad_() for leaf in leaves]
    truth = grouped_linear(exact[0], exact[1], exact[2] if bias else None, torch.tensor(counts))
    expected = [truth, *torch.autograd.grad(truth, exact, outward.bfloat16().double())]
    for one, other in zip(ours, expected, strict=True):
        assert one.shape == other.shape
        if other.norm() > 0:
            assert distance(one, other) < 1e-2
        else:
            assert not one.any()


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("tokens", [1, 5, 300])
def test_cuda_layer_matches_cpu(gated: bool, tokens: int) -> None:
    block = block_of(Gating("adaptive", 0.1), gated)
    states = states_of(tokens)
    expected = outputs_and_gradients(copy.deepcopy(block), states)
    ours = outputs_and_gradients(block.cuda(), states.cuda())
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other)


def test_in_bfloat16_it_computes_the_same_within_rounding() -> None:
    # Threshold 1: with a threshold between, tokens near it choose otherwise by rounding.
    block = block_of(Gating("adaptive", 1.0))
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(parameter.bfloat16())
    states = states_of(300).bfloat16().double()
    expected = outputs_and_gradients(copy.deepcopy(block), states)
    ours = outputs_and_gradients(block.cuda().bfloat16(), states.cuda().bfloat16())
    # A few tokens have other experts by the rounding of the router's products.
    for one, other in zip(ours[:2], expected[:2], strict=True):
        errors = (one.cpu().double() - other).norm(dim=-1) / other.norm(dim=-1)
        assert errors.quantile(0.9) < 3e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("threshold", "mode"), [(0.0, "top1"), (1.0, "top2")])
def test_threshold_extremes_equal_fixed_modes_on_cuda(
    dtype: torch.dtype, threshold: float, mode: GatingMode
) -> None:
    states = states_of(300).to("cuda", dtype)
    adaptive, fixed = (
        outputs_and_gradients(block_of(gating).to("cuda", dtype), states)
        for gating in (Gating("adaptive", threshold), Gating(mode))
    )
    for one, other in zip(adaptive, fixed, strict=True):
        assert torch.equal(one, other)


def test_unneeded_second_experts_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows_seen: list[int] = []
    forward = _GroupedLinear.forward

    def counted(ctx: object, rows: Tensor, *rest: Tensor) -> Tensor:
        rows_seen.append(len(rows))
        return forward(ctx, rows, *rest)

    monkeypatch.setattr(_GroupedLinear, "forward", staticmethod(counted))
    block = block_of(Gating("adaptive", 0.02)).to("cuda", torch.bfloat16)
    block(states_of(300).to("cuda", torch.bfloat16))
    doubles = float(pop_passes(block)[""].routing.is_double.double().mean())
    assert 0 < doubles < 1
    assert rows_seen == [300 + round(300 * doubles)] * 2
