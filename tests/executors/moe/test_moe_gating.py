"""A token gets experts and their weights; uneven load adds to the loss."""

import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from executors.moe.gating import Gating, Routing, balance_loss, route
from schemas.experts.workload import GatingRule, ThresholdOn


def pairs(routing: Routing) -> list[tuple[int, int]]:
    """(token, expert) of each pair, in order."""
    experts = torch.arange(len(routing.counts)).repeat_interleave(routing.counts)
    return list(zip(routing.pairs_token.tolist(), experts.tolist(), strict=True))


def logits_of(*probabilities: list[float]) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def assert_same(left: Routing, right: Routing) -> None:
    for name in Routing.__dataclass_fields__:
        assert torch.equal(getattr(left, name), getattr(right, name)), name


@st.composite
def logits(draw: st.DrawFn, fewest_experts: int = 2) -> Tensor:
    """Logits of a few values, so that many are equal."""
    tokens, experts = draw(st.integers(1, 6)), draw(st.integers(fewest_experts, 5))
    row = st.lists(st.sampled_from([-30.0, -1.0, 0.0, 0.1, 2.0, 90.0]), min_size=experts, max_size=experts)
    return torch.tensor(draw(st.lists(row, min_size=tokens, max_size=tokens)))


ON = st.sampled_from(get_args(ThresholdOn))
THREE_TOKENS = logits_of([0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.2, 0.5, 0.3])


def test_token_within_threshold_gets_two_experts() -> None:
    routing = route(THREE_TOKENS, Gating("adaptive", 0.3))

    assert pairs(routing) == [(0, 0), (0, 1), (2, 1), (1, 2), (2, 2)]
    assert routing.is_double.tolist() == [True, False, True]
    assert routing.first_expert.tolist() == [0, 2, 1]


def test_threshold_is_on_chosen_probabilities_or_all() -> None:
    # Erratum G1. The differences are 0.2, 0.5 and 0.2 of all, and 2/8, 5/9 and 2/8 of the two chosen.
    doubles = {
        (on, threshold): route(
            THREE_TOKENS, Gating("adaptive", threshold, threshold_on=on)
        ).is_double.tolist()
        for on in ("chosen", "all")
        for threshold in (0.22, 0.26, 0.52)
    }
    assert doubles == {
        ("chosen", 0.22): [False, False, False],
        ("chosen", 0.26): [True, False, True],
        ("chosen", 0.52): [True, False, True],
        ("all", 0.22): [True, False, True],
        ("all", 0.26): [True, False, True],
        ("all", 0.52): [True, True, True],
    }


@pytest.mark.parametrize(("on", "low", "high"), [("all", 0.94, 0.98), ("chosen", 0.52, 0.56)])
def test_flat_routers_double_most_tokens_on_all(on: str, low: float, high: float) -> None:
    # 16 experts, logits of deviation 0.5, T = 0.1: 96 and 54 %.
    logits = 0.5 * torch.randn(20_000, 16, generator=torch.Generator().manual_seed(5))
    gating = Gating("adaptive", 0.1, threshold_on=on)  # type: ignore[arg-type]
    assert low < float(route(logits, gating).is_double.double().mean()) < high


@given(logits(), st.floats(0.0, 1.0))
def test_chosen_probabilities_double_no_more_tokens(logits: Tensor, threshold: float) -> None:
    chosen, every = (
        route(logits.double(), Gating("adaptive", threshold, threshold_on=on)).is_double
        for on in ("chosen", "all")
    )
    assert (every | ~chosen).all()


def test_rule_leaves_unstated_fields_of_a_model() -> None:
    present = Gating("adaptive", 0.3, "probability", "all")
    assert present.by(GatingRule()) == Gating("top1", 0.3, "probability", "all")
    assert present.by(GatingRule(mode="adaptive", threshold=0.2)) == Gating(
        "adaptive", 0.2, "probability", "all"
    )
    stated = GatingRule(mode="adaptive", threshold=0.2, threshold_on="chosen")
    assert present.by(stated) == Gating("adaptive", 0.2, "probability", "chosen")


def test_normalized_weights_sum_to_one_for_each_token() -> None:
    weights = route(THREE_TOKENS, Gating("adaptive", 0.3)).pairs_weight

    assert weights.tolist() == pytest.approx([5 / 8, 3 / 8, 5 / 8, 1.0, 3 / 8])


def test_weights_can_be_the_probabilities_themselves() -> None:
    weights = route(THREE_TOKENS, Gating("adaptive", 0.3, weights="probability")).pairs_weight

    assert weights.tolist() == pytest.approx([0.5, 0.3, 0.5, 0.7, 0.3])


@pytest.mark.parametrize("weights", ["normalized", "probability"])
def test_a_single_expert_still_trains_the_router(weights: str) -> None:
    leaf = THREE_TOKENS.clone().requires_grad_()
    routing = route(leaf, Gating("top1", weights=weights))
    routing.pairs_weight.sum().backward()

    probabilities = THREE_TOKENS.softmax(1)
    first = probabilities.max(1).values.unsqueeze(1)
    chosen = (probabilities == first).double()
    of_probability = first * (chosen - probabilities)  # the softmax's derivative
    assert torch.allclose(leaf.grad, of_probability / (first if weights == "normalized" else 1.0))


def test_of_equal_experts_the_first_are_chosen() -> None:
    assert pairs(route(torch.zeros(2, 4), Gating("top1"))) == [(0, 0), (1, 0)]
    assert pairs(route(torch.zeros(2, 4), Gating("top2"))) == [(0, 0), (1, 0), (0, 1), (1, 1)]


@given(logits(), ON)
def test_zero_threshold_is_top_1(logits: Tensor, on: ThresholdOn) -> None:
    gating = Gating("adaptive", 0.0, threshold_on=on)
    assert_same(route(logits, gating), route(logits, Gating("top1")))


@given(logits(), ON)
def test_a_threshold_of_one_is_top_2(logits: Tensor, on: ThresholdOn) -> None:
    gating = Gating("adaptive", 1.0, threshold_on=on)
    assert_same(route(logits, gating), route(logits, Gating("top2")))


@given(logits(), st.floats(0.0, 1.0), ON)
def test_only_doubled_tokens_have_second_expert(logits: Tensor, threshold: float, on: ThresholdOn) -> None:
    routing = route(logits, Gating("adaptive", threshold, threshold_on=on))

    chosen = pairs(routing)
    assert len(set(chosen)) == len(chosen)
    assert chosen == sorted(chosen, key=lambda pair: (pair[1], pair[0]))
    assert {(token, expert) for token, expert in enumerate(routing.first_expert.tolist())} <= set(chosen)
    of_tokens = torch.bincount(routing.pairs_token, minlength=len(logits))
    assert torch.equal(of_tokens, 1 + routing.is_double.long())
    sums = torch.zeros(len(logits)).index_add(0, routing.pairs_token, routing.pairs_weight)
    assert torch.allclose(sums, torch.ones(len(logits)))


@given(logits(), st.floats(0.0, 1.0), st.floats(0.0, 1.0), ON)
def test_larger_threshold_doubles_no_fewer_tokens(
    logits: Tensor, one: float, other: float, on: ThresholdOn
) -> None:
    low, high = (
        route(logits, Gating("adaptive", t, threshold_on=on)).is_double for t in sorted((one, other))
    )
    assert (high | ~low).all()


def test_balance_loss_counts_single_expert_tokens() -> None:
    # Erratum G2. Tokens 1 and 3 have one expert, 2 and 0: f = (1/2, 0, 1/2).
    logits = logits_of([0.4, 0.4, 0.2], [0.1, 0.1, 0.8], [0.3, 0.4, 0.3], [0.8, 0.1, 0.1])
    routing = route(logits, Gating("adaptive", 0.15))
    assert routing.is_double.tolist() == [True, False, True, False]

    means = (1.6 / 4, 1.0 / 4, 1.4 / 4)
    assert float(balance_loss(routing)) == pytest.approx(3 * (means[0] / 2 + means[2] / 2))


def test_balance_loss_of_even_load_is_one() -> None:
    even, uneven = 40.0 * torch.eye(4), torch.tensor([[40.0, 0.0, 0.0, 0.0]] * 4)
    assert float(balance_loss(route(even, Gating("top1")))) == pytest.approx(1.0)
    assert float(balance_loss(route(uneven, Gating("top1")))) == pytest.approx(4.0)


def test_balance_loss_counts_first_choices_under_top_2() -> None:
    routing = route(THREE_TOKENS, Gating("top2"))
    assert float(balance_loss(routing)) == pytest.approx(3 * (0.8 + 1.0 + 1.2) / 3 / 3)


def test_balance_loss_of_no_token_is_zero() -> None:
    assert float(balance_loss(route(torch.zeros(0, 4), Gating("top2")))) == 0.0


@pytest.mark.parametrize("threshold", [-0.01, 1.01, math.nan, math.inf])
def test_a_threshold_outside_zero_to_one_is_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match=r"gating threshold .* is outside \[0, 1\]"):
        Gating("adaptive", threshold)


def test_unknown_modes_and_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="'top3' is not one of top1, top2, adaptive"):
        Gating("top3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'equal' are not one of normalized, probability"):
        Gating("top1", weights="equal")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on 'some' is not on one of chosen, all"):
        Gating("top1", threshold_on="some")  # type: ignore[arg-type]


def test_two_experts_per_token_need_two() -> None:
    assert route(torch.zeros(3, 1), Gating("top1")).counts.tolist() == [3]
    for gating in (Gating("top2"), Gating("adaptive", 0.1)):
        with pytest.raises(ValueError, match="needs at least 2 experts, the router has 1"):
            route(torch.zeros(3, 1), gating)


def test_logits_of_another_form_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 3, 4\), not \(tokens, experts\)"):
        route(torch.zeros(2, 3, 4), Gating("top1"))
