"""Choice of the experts that process a token, and their weights (thesis, section 5.3.1)."""

from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

import torch
from torch import Tensor

from schemas.experts.workload import GatingMode, GatingRule, ThresholdOn

ExpertWeights = Literal["normalized", "probability"]


@dataclass(frozen=True)
class Gating:
    """Rule for the number of experts of a token.

    Attributes:
        mode: one expert for each token, two, or two if the router's probabilities are close.
        threshold: T, in [0, 1], of adaptive gating: a token gets two experts when P1 - P2 <= T, for its two
            largest probabilities (erratum G1). T = 0 is top-1, even for a token with equal largest
            probabilities; a router of zeros makes them all equal; T = 1 is top-2. The default is the thesis's
            (section 5.4.3). The other modes ignore it.
        threshold_on: probabilities that P1 and P2 are of: ``all``, the softmax over all experts; ``chosen``,
            that softmax divided by P1 + P2, which depends on the difference of two logits alone. Section
            5.4.3 normalises "the expert probability" and does not state over which experts (erratum G1).
        weights: factors of the outputs of a token's experts in their sum (Eq. 5.3).

            ``normalized``, as in Mixtral and in section 5.4.3: probabilities divided by the sum of those
            selected. So a single expert has weight 1, and if all experts are equal the layer equals a dense
            one. A constant weight would never train the router. So the gradient of a single expert's weight
            is that of P1 with the divisor held constant, P1' / P1. This is Switch's gradient, scaled like its
            output.

            ``probability``, as in Switch: the probabilities themselves.

    Raises:
        ValueError: the threshold is outside [0, 1], or the mode, the weights or the probabilities of the
            threshold are unknown.
    """

    mode: GatingMode
    threshold: float = 0.1
    weights: ExpertWeights = "normalized"
    threshold_on: ThresholdOn = "chosen"

    def __post_init__(self) -> None:
        if self.mode not in get_args(GatingMode):
            raise ValueError(f"gating mode {self.mode!r} is not one of {', '.join(get_args(GatingMode))}")
        if self.weights not in get_args(ExpertWeights):
            raise ValueError(
                f"expert weights {self.weights!r} are not one of {', '.join(get_args(ExpertWeights))}"
            )
        if self.threshold_on not in get_args(ThresholdOn):
            raise ValueError(
                f"a threshold on {self.threshold_on!r} is not on one of {', '.join(get_args(ThresholdOn))}"
            )
        if not 0.0 <= self.threshold <= 1.0:  # NaN is outside too
            raise ValueError(f"gating threshold {self.threshold} is outside [0, 1]")

    @property
    def largest_gap(self) -> float:
        """Largest P1 - P2 with which a token gets two experts; with 0, no token does."""
        return {"top1": 0.0, "top2": 1.0, "adaptive": self.threshold}[self.mode]

    @property
    def fewest_experts(self) -> int:
        """Fewest experts of a layer: as many as a token may get."""
        return 2 if self.largest_gap > 0.0 else 1

    def by(self, rule: GatingRule) -> Self:
        """Return the gating by a job's rule; what the rule does not state stays as it is here."""
        return replace(self, **rule.model_dump(exclude_none=True))


@dataclass(frozen=True)
class Routing:
    """The (token, expert) pairs to compute: one or two for each token, and no others (erratum G3).

    Attributes:
        pairs_token: ``(pairs,)`` int64, the token of each pair; sorted by expert, and then by token.
        pairs_weight: ``(pairs,)``, factor of the expert's output.
        counts: ``(experts,)`` int64, number of pairs of each expert.
        probabilities: ``(tokens, experts)``, the router's softmax (Eq. 5.2), in float32 or wider.
        first_expert: ``(tokens,)`` int64, the expert of the largest probability; of equal ones, the first.
        is_double: ``(tokens,)`` bool, whether the token has two experts.
    """

    pairs_token: Tensor
    pairs_weight: Tensor
    counts: Tensor
    probabilities: Tensor
    first_expert: Tensor
    is_double: Tensor


def route(logits: Tensor, gating: Gating) -> Routing:
    """Select the experts of each token.

    The result depends only on the logits and the gating, on every device.

    Args:
        logits: ``(tokens, experts)``.

    Raises:
        ValueError: the logits have another form, or there are fewer experts than a token may get.
    """
    if logits.ndim != 2:
        raise ValueError(f"router logits have shape {tuple(logits.shape)}, not (tokens, experts)")
    tokens, experts = logits.shape
    if experts < gating.fewest_experts:
        raise ValueError(
            f"{gating.mode} gating needs at least {gating.fewest_experts} experts, the router has {experts}"
        )
    wide = torch.promote_types(logits.dtype, torch.float32)
    probabilities = logits.softmax(dim=-1, dtype=wide)
    # Maxima, not topk: for equal values they are documented to return the first.
    chosen_probability, chosen = probabilities.max(dim=-1, keepdim=True)
    first_expert = chosen.squeeze(1)
    is_double = torch.zeros_like(first_expert, dtype=torch.bool)
    pairs_place = torch.arange(tokens, device=logits.device)
    if gating.fewest_experts == 2:
        others = probabilities.detach().scatter(1, chosen, -1.0)
        chosen = torch.cat([chosen, others.argmax(dim=-1, keepdim=True)], dim=1)
        chosen_probability = probabilities.gather(1, chosen)
        is_double = ~(_gap(chosen_probability.detach(), gating.threshold_on) > gating.largest_gap)
        kept = torch.stack([torch.ones_like(is_double), is_double], dim=1)
        pairs_place = kept.flatten().nonzero().squeeze(1)
    # Tokens are in order, so a stable sort by expert keeps each expert's tokens in order.
    pairs_expert, order = chosen.flatten()[pairs_place].sort(stable=True)
    pairs_place = pairs_place[order]
    return Routing(
        pairs_token=pairs_place // chosen.shape[1],
        pairs_weight=_weights(chosen_probability, is_double, gating).flatten()[pairs_place],
        counts=torch.bincount(pairs_expert, minlength=experts),
        probabilities=probabilities,
        first_expert=first_expert,
        is_double=is_double,
    )


def _gap(chosen_probability: Tensor, threshold_on: ThresholdOn) -> Tensor:
    """Return P1 - P2 of each token, ``(tokens,)`` in [0, 1], from ``(tokens, 2)`` of the softmax over all."""
    first, second = chosen_probability.unbind(1)
    # P1 is at least one divided by the number of experts, so the sum is not 0.
    return first - second if threshold_on == "all" else (first - second) / (first + second)


def _weights(chosen_probability: Tensor, is_double: Tensor, gating: Gating) -> Tensor:
    """Return the weights of the experts of each token, ``(tokens, 1 or 2)``; the second is valid only for
    tokens with two experts."""
    if gating.weights == "probability":
        return chosen_probability
    single = chosen_probability[:, 0].detach()
    return chosen_probability / torch.where(is_double, chosen_probability.sum(dim=1), single).unsqueeze(1)


def balance_loss(routing: Routing) -> Tensor:
    """Return a loss that grows as the load of the experts becomes uneven: E sum_e f_e p_e (Eq. 5.4), a
    scalar.

    f_e is expert e's fraction of the tokens that go to one expert only, p_e its mean probability over all
    tokens (erratum G2). It is 1 for an even load. If every token goes to two experts, f is 0/0; then the
    first choices of all tokens count, which is GShard's loss for top-2 gating: otherwise top-2 would not be
    balanced, and T = 1 could not equal it.
    """
    tokens, experts = routing.probabilities.shape
    counted = ~routing.is_double | routing.is_double.all()
    dispatched = torch.zeros_like(routing.probabilities[:0].sum(dim=0))
    dispatched = dispatched.index_add(0, routing.first_expert, counted.to(dispatched.dtype))
    fractions = dispatched / dispatched.sum().clamp(min=1)
    means = routing.probabilities.sum(dim=0) / max(tokens, 1)
    return experts * (fractions * means).sum()
