"""A mixture-of-experts layer: router, gating, experts, and what the router did in the last pass."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from executors.moe.gating import Gating, Routing, balance_loss, route

ApplyExperts = Callable[[Tensor, Tensor], Tensor]
"""Maps rows ``(pairs, hidden)`` sorted by expert, and their counts ``(experts,)``, to as many outputs."""


@dataclass(frozen=True)
class LayerPass:
    """How one layer routed one batch.

    Attributes:
        routing: of the batch's tokens, padding left out; its probabilities still bear gradients.
        sequence: ``(tokens,)`` int64, in which sequence of the batch each token is.
        sequences: how many sequences the batch has.
    """

    routing: Routing
    sequence: Tensor
    sequences: int

    @property
    def double_ratio(self) -> Tensor:
        """The ratio of tokens with two experts to all, a scalar."""
        return self.routing.is_double.double().sum() / max(len(self.sequence), 1)

    @property
    def tokens_of_sequences(self) -> Tensor:
        """Tokens of each sequence, ``(sequences,)`` int64."""
        return torch.bincount(self.sequence, minlength=self.sequences)

    @property
    def double_ratio_of_sequences(self) -> Tensor:
        """Each sequence's ratio r of tokens with two experts (Eq. 5.5), ``(sequences,)`` float64."""
        doubles = torch.bincount(self.sequence[self.routing.is_double], minlength=self.sequences)
        return doubles.double() / self.tokens_of_sequences.clamp(min=1)


class Router(nn.Linear):
    """Maps hidden states ``(tokens, hidden)`` to logits ``(tokens, experts)`` in the data type of its weight.

    Autocast does not apply: which experts are chosen is sensitive to rounding.
    """

    def __init__(self, hidden: int, experts: int, bias: bool = False) -> None:
        """Make a router of zeros: until it is trained or filled, all experts are equal."""
        super().__init__(hidden, experts, bias=bias)

    def reset_parameters(self) -> None:
        """Set the weights to zero."""
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, hidden_states: Tensor) -> Tensor:
        with torch.autocast(hidden_states.device.type, enabled=False):
            return super().forward(hidden_states.to(self.weight.dtype))


class MoeBlock(nn.Module):
    """A mixture-of-experts layer in the place of a feed-forward network. No token is dropped.

    Pairs that the gating does not choose are left out before the experts compute (erratum G3).

    Attributes:
        router: maps ``(tokens, hidden)`` to logits ``(tokens, experts)``.
        gating: may be replaced between passes.
        experts: what computes them; a module that spreads them over devices can be put here.
        is_token: ``(batch, sequence)`` bool, false where the next passes have padding; it is not routed, and
            its outputs are zeros. None where all places have tokens.
        last_pass: how the last pass was routed; see `take_passes`.
    """

    def __init__(
        self, router: nn.Module, gating: Gating, experts: ApplyExperts, dropout: float = 0.0
    ) -> None:
        """Put a layer together; ``dropout`` is of its outputs, in training."""
        super().__init__()
        self.router = router
        self.gating = gating
        self.experts = experts
        self.dropout = nn.Dropout(dropout)
        self.is_token: Tensor | None = None
        self.last_pass: LayerPass | None = None

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Process ``(batch, sequence, hidden)``, or ``(tokens, hidden)`` as one sequence, to the same form.

        Raises:
            ValueError: ``is_token`` is of another batch, or there are fewer experts than a token may get.
        """
        *outer, length, hidden = hidden_states.shape
        sequences = math.prod(outer)
        flat = hidden_states.reshape(-1, hidden)
        places, tokens = torch.arange(len(flat), device=flat.device), flat
        if self.is_token is not None:
            if self.is_token.shape != hidden_states.shape[:-1]:
                shapes = f"{tuple(self.is_token.shape)}, the batch {tuple(hidden_states.shape[:-1])}"
                raise ValueError(f"is_token has shape {shapes}")
            places = places[self.is_token.flatten()]
            tokens = flat.index_select(0, places)
        routing = route(self.router(tokens), self.gating)
        self.last_pass = LayerPass(routing, places // length, sequences)
        outputs = self.experts(tokens.index_select(0, routing.pairs_token), routing.counts)
        weighted = outputs * routing.pairs_weight.to(outputs.dtype).unsqueeze(1)
        # At most two rows are added for a token, so their order changes nothing: deterministic on a GPU too.
        combined = torch.zeros_like(flat, dtype=outputs.dtype).index_add(
            0, places[routing.pairs_token], weighted
        )
        processed: Tensor = self.dropout(combined.view(hidden_states.shape))
        return processed


def moe_blocks(model: nn.Module) -> dict[str, MoeBlock]:
    """The mixture-of-experts layers of a model by dotted name, in its order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, MoeBlock)}


def take_passes(model: nn.Module) -> dict[str, LayerPass]:
    """How each layer of a model routed the last batch, by the layer's name; the layers forget it.

    Layers that have had no pass since are left out.
    """
    passes = {}
    for name, block in moe_blocks(model).items():
        if block.last_pass is not None:
            passes[name] = block.last_pass
            block.last_pass = None
    return passes


def auxiliary_loss(passes: Mapping[str, LayerPass]) -> Tensor:
    """The sum of the layers' balance losses (Eq. 5.4), a scalar; the thesis adds it 0.01 times to the loss.

    Raises:
        ValueError: there is no pass.
    """
    if not passes:
        raise ValueError("no layer has routed a batch, so there is no balance loss")
    return torch.stack([balance_loss(layer.routing) for layer in passes.values()]).sum()


def set_gating(model: nn.Module, gating: Gating) -> None:
    """Replace the gating of all layers of a model, for instance by top-1 for inference."""
    for block in moe_blocks(model).values():
        block.gating = gating
