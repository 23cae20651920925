"""The layer against one that computes every expert for every token, and what it computes and reports."""

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from executors.moe.block import MoeBlock, Router, auxiliary_loss, moe_blocks, pop_passes, set_gating
from executors.moe.experts import Experts
from executors.moe.gating import ExpertWeights, Gating
from schemas.experts.workload import ThresholdOn

HIDDEN, INTERMEDIATE = 6, 10

MakeBlock = Callable[..., MoeBlock]


@pytest.fixture
def make_block() -> MakeBlock:
    def make(
        gating: Gating, *, experts: int = 4, gated: bool = False, bias: bool = True, dtype=torch.float64
    ) -> MoeBlock:
        generator = torch.Generator().manual_seed(3)
        layer = Experts(experts, HIDDEN, INTERMEDIATE, activation="silu", gated=gated, bias=bias)
        layer.initialize_(0.5, generator)
        router = Router(HIDDEN, experts)
        with torch.no_grad():
            for parameter in [*layer.parameters(), *router.parameters()]:
                parameter.normal_(0.0, 0.4, generator=generator)
        return MoeBlock(router, gating, layer).to(dtype)

    return make


def hidden_states(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(*shape, HIDDEN, dtype=dtype, generator=generator)


def dense_reference(block: MoeBlock, states: Tensor) -> Tensor:
    """Compute every expert for every token, then weigh, by the layer's parameters alone."""
    experts, gating = block.experts, block.gating
    tokens = states.reshape(-1, HIDDEN)
    probabilities = (tokens @ block.router.weight.t()).softmax(1)
    top, chosen = probabilities.topk(2, dim=1)
    compared = top / top.sum(1, keepdim=True) if gating.threshold_on == "chosen" else top
    double = (compared[:, 0] - compared[:, 1] <= gating.threshold).double()
    if gating.weights == "probability":
        weights = torch.stack([top[:, 0], top[:, 1] * double], 1)
    else:
        single = top[:, 0] / top[:, 0].detach()
        shares = top / top.sum(1, keepdim=True)
        first = double * shares[:, 0] + (1 - double) * single
        weights = torch.stack([first, double * shares[:, 1]], 1)
    inward = experts.gate_up_proj if experts.gated else experts.up_proj
    features = torch.einsum("th,eih->tei", tokens, inward)
    if experts.down_proj_bias is not None:
        features = features + (experts.gate_up_proj_bias if experts.gated else experts.up_proj_bias)
    if experts.gated:
        features = nn.functional.silu(features[..., :INTERMEDIATE]) * features[..., INTERMEDIATE:]
    else:
        features = nn.functional.silu(features)
    outputs = torch.einsum("tei,ehi->teh", features, experts.down_proj)
    if experts.down_proj_bias is not None:
        outputs = outputs + experts.down_proj_bias
    dense_weights = torch.zeros_like(probabilities).scatter_add(1, chosen, weights)
    return torch.einsum("te,teh->th", dense_weights, outputs).view(states.shape)


def outputs_and_gradients(
    block: MoeBlock, compute: Callable[[Tensor], Tensor], states: Tensor
) -> list[Tensor]:
    leaf = states.clone().requires_grad_()
    outputs = compute(leaf)
    (
        outputs * torch.linspace(-1, 2, outputs.numel(), dtype=outputs.dtype).view(outputs.shape)
    ).sum().backward()
    gradients = [leaf.grad, *(parameter.grad for parameter in block.parameters())]
    block.zero_grad()
    return [outputs.detach(), *gradients]


@pytest.mark.parametrize("threshold_on", get_args(ThresholdOn))
@pytest.mark.parametrize("weights", ["normalized", "probability"])
@pytest.mark.parametrize(("gated", "bias"), [(False, True), (False, False), (True, False), (True, True)])
def test_block_matches_computing_every_expert(
    make_block: MakeBlock, threshold_on: ThresholdOn, weights: ExpertWeights, gated: bool, bias: bool
) -> None:
    block = make_block(Gating("adaptive", 0.3, weights, threshold_on), gated=gated, bias=bias)
    states = hidden_states(3, 7)

    ours = outputs_and_gradients(block, block, states)
    assert 0 < float(pop_passes(block)[""].routing.is_double.double().mean()) < 1
    for one, other in zip(
        ours, outputs_and_gradients(block, lambda x: dense_reference(block, x), states), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_gradients_are_the_derivatives(make_block: MakeBlock) -> None:
    block = make_block(Gating("adaptive", 0.2, "probability"), gated=True)
    names, parameters = zip(*block.named_parameters(), strict=True)

    def compute(states: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(block, dict(zip(names, values, strict=True)), (states,))

    states = hidden_states(2, 3).requires_grad_()
    assert torch.autograd.gradcheck(compute, (states, *parameters))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("threshold", "mode"), [(0.0, "top1"), (1.0, "top2")])
@pytest.mark.parametrize("routers", ["drawn", "of zeros"])
def test_threshold_extremes_equal_fixed_modes(
    make_block: MakeBlock, dtype: torch.dtype, threshold: float, mode: str, routers: str
) -> None:
    results = []
    for gating in (Gating("adaptive", threshold), Gating(mode)):
        block = make_block(gating, dtype=dtype)
        if routers == "of zeros":
            block.router.reset_parameters()

        def with_auxiliary_loss(states: Tensor, block: MoeBlock = block) -> Tensor:
            return block(states) + auxiliary_loss(pop_passes(block)).to(states.dtype)

        results.append(outputs_and_gradients(block, with_auxiliary_loss, hidden_states(2, 16, dtype=dtype)))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize(("singles", "of_top2"), [(0.8, 0.6), (0.5, 0.75), (0.2, 0.9)])
def test_pairs_that_are_not_chosen_are_not_computed(
    make_block: MakeBlock, singles: float, of_top2: float
) -> None:
    """The computation of Table 5.1."""
    block = make_block(Gating("adaptive", 0.1))
    logits = torch.zeros(100, 4, dtype=torch.float64)
    logits[: round(100 * singles), 1] = 5.0
    logits[round(100 * singles) :, 2:] = 5.0
    block.router = _Fixed(logits)
    given: list[int] = []
    block.experts.register_forward_pre_hook(lambda _, inputs: given.append(len(inputs[0])))

    block(hidden_states(1, 100))
    set_gating(block, Gating("top2"))
    block(hidden_states(1, 100))

    assert given == [round(200 * of_top2), 200]


class _Fixed(nn.Module):
    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits


def test_an_expert_without_tokens_gets_gradients_of_zero(make_block: MakeBlock) -> None:
    block = make_block(Gating("top1"))
    block.router.reset_parameters()
    block(hidden_states(2, 3)).sum().backward()

    for parameter in block.experts.parameters():
        assert parameter.grad is not None
        assert parameter.grad[0].abs().sum() > 0
        assert not parameter.grad[1:].any()


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 1), (1,)])
def test_there_may_be_more_experts_than_tokens(make_block: MakeBlock, shape: tuple[int, ...]) -> None:
    block = make_block(Gating("adaptive", 0.5), experts=16)
    states = hidden_states(*shape)
    torch.testing.assert_close(block(states), dense_reference(block, states))


def test_statistics_are_of_the_pass_itself(make_block: MakeBlock) -> None:
    model = nn.Sequential(make_block(Gating("adaptive", 0.2)), make_block(Gating("top2")))
    model(hidden_states(3, 5))
    passes = pop_passes(model)

    assert list(passes) == list(moe_blocks(model)) == ["0", "1"]
    first, second = passes.values()
    doubles = first.routing.is_double.view(3, 5).double().mean(1)
    assert torch.equal(first.double_ratio_of_sequences, doubles)
    assert second.double_ratio_of_sequences.tolist() == [1.0, 1.0, 1.0]
    assert first.tokens_of_sequences.tolist() == [5, 5, 5]
    assert int(second.routing.counts.sum()) == 30
    assert pop_passes(model) == {}


def test_padding_is_neither_computed_nor_counted(make_block: MakeBlock) -> None:
    block = make_block(Gating("adaptive", 0.2))
    states = hidden_states(2, 4)
    block.is_token = torch.tensor([[True, True, True, True], [True, False, False, False]])
    padded = block(states)
    counted = pop_passes(block)[""]
    block.is_token = None

    whole = dense_reference(block, states)
    torch.testing.assert_close(padded[0], whole[0])
    torch.testing.assert_close(padded[1, 0], whole[1, 0])
    assert not padded[1, 1:].any()
    assert counted.tokens_of_sequences.tolist() == [4, 1]
    assert len(counted.routing.probabilities) == 5


def test_a_mask_of_another_batch_is_refused(make_block: MakeBlock) -> None:
    block = make_block(Gating("top1"))
    block.is_token = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"is_token has shape \(2, 3\), the batch \(2, 4\)"):
        block(hidden_states(2, 4))


def test_autocast_applies_to_experts_not_router(
    make_block: MakeBlock,
) -> None:
    block = make_block(Gating("adaptive", 0.2), dtype=torch.float32)
    states = hidden_states(2, 4, dtype=torch.float32).requires_grad_()
    exact, routed = block(states), pop_passes(block)[""].routing
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = block(states)
    outputs.sum().backward()

    assert outputs.dtype == torch.bfloat16
    assert torch.equal(pop_passes(block)[""].routing.probabilities, routed.probabilities)
    torch.testing.assert_close(outputs.float(), exact, rtol=0.05, atol=0.1)
    assert all(parameter.grad.dtype == torch.float32 for parameter in block.parameters())


def test_there_is_no_balance_loss_without_a_pass() -> None:
    with pytest.raises(ValueError, match="no layer has routed a batch"):
        auxiliary_loss({})


def test_counts_that_do_not_fit_are_refused(make_block: MakeBlock) -> None:
    experts = make_block(Gating("top1")).experts
    with pytest.raises(ValueError, match="counts of 3 rows in all, but there are 4 rows"):
        experts(hidden_states(4), torch.tensor([1, 1, 1, 0]))
    with pytest.raises(ValueError, match=r"counts of shape \(3,\) for 4 experts"):
        experts(hidden_states(4), torch.tensor([2, 1, 1]))


def test_layers_without_experts_and_unknown_activations_are_refused() -> None:
    with pytest.raises(ValueError, match="a layer of 0 experts"):
        Experts(0, 4, 8, activation="gelu")
    with pytest.raises(ValueError, match="'geluu' is not in transformers"):
        Experts(2, 4, 8, activation="geluu")
