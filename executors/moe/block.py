"""A mixture-of-experts layer: router, gating, experts, and the routing of the last pass."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from executors.moe.gating import Gating, Routing, balance_loss, route

ApplyExperts = Callable[[Tensor, Tensor], Tensor]
"""Maps rows ``(pairs, hidden)`` sorted by expert, and their counts ``(experts,)``, to as many outputs."""


@dataclass(frozen=True)
class LayerPass:
    """Routing of one batch by one layer.

    Attributes:
        routing: routing of the batch's tokens, without padding; its probabilities still bear gradients.
        sequence: ``(tokens,)`` int64, number of each token's sequence in the batch.
        sequences: number of sequences in the batch.
    """

    routing: Routing
    sequence: Tensor
    sequences: int

    @property
    def tokens_of_sequences(self) -> Tensor:
        """Return the number of tokens of each sequence, ``(sequences,)`` int64."""
        return torch.bincount(self.sequence, minlength=self.sequences)

    @property
    def double_ratio_of_sequences(self) -> Tensor:
        """Return each sequence's ratio r of tokens with two experts (Eq. 5.5), ``(sequences,)`` float64."""
        doubles = torch.bincount(self.sequence[self.routing.is_double], minlength=self.sequences)
        return doubles.double() / self.tokens_of_sequences.clamp(min=1)


class Router(nn.Linear):
    """Maps hidden states ``(tokens, hidden)`` to logits ``(tokens, experts)`` in the data type of its weight.

    Autocast does not apply: the choice of experts is sensitive to rounding.
    """

    def __init__(self, hidden: int, experts: int, bias: bool = False) -> None:
        """Create a router of zeros: all experts are equal until it is trained or filled."""
        super().__init__(hidden, experts, bias=bias)

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, hidden_states: Tensor) -> Tensor:
        with torch.autocast(hidden_states.device.type, enabled=False):
            return super().forward(hidden_states.to(self.weight.dtype))


class MoeBlock(nn.Module):
    """A mixture-of-experts layer instead of a feed-forward network. No token is dropped.

    Pairs that the gating does not select are removed before the experts compute (erratum G3).

    Attributes:
        router: maps ``(tokens, hidden)`` to logits ``(tokens, experts)``.
        gating: gating of the next passes; may be replaced.
        experts: computation of the experts; may be a module that spreads them over devices.
        is_token: ``(batch, sequence)`` bool, false at padding in the next passes; padding is not routed, and
            its outputs are zeros. None without padding.
        last_pass: routing of the last pass; see `pop_passes`.
    """

    def __init__(
        self, router: nn.Module, gating: Gating, experts: ApplyExperts, dropout: float = 0.0
    ) -> None:
        """Combine the parts of a layer; ``dropout`` is that of its outputs, in training."""
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
        # At most two rows are added for a token, so their order has no effect: also deterministic on a GPU.
        combined = torch.zeros_like(flat, dtype=outputs.dtype).index_add(
            0, places[routing.pairs_token], weighted
        )
        processed: Tensor = self.dropout(combined.view(hidden_states.shape))
        return processed


def moe_blocks(model: nn.Module) -> dict[str, MoeBlock]:
    """Return the mixture-of-experts layers of a model by dotted name, in its order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, MoeBlock)}


def router_bytes(model: nn.Module) -> bytes:
    """Return the weights of all routers as float32, by which models are compared."""
    return b"".join(
        each.detach().float().cpu().numpy().tobytes()
        for block in moe_blocks(model).values()
        for each in block.router.parameters()
    )


def pop_passes(model: nn.Module) -> dict[str, LayerPass]:
    """Remove and return the routing of the last batch in each layer of a model, by the layer's name.

    Layers without a pass since the last call are left out.
    """
    passes = {}
    for name, block in moe_blocks(model).items():
        if block.last_pass is not None:
            passes[name] = block.last_pass
            block.last_pass = None
    return passes


def auxiliary_loss(passes: Mapping[str, LayerPass]) -> Tensor:
    """Return the sum of the layers' balance losses (Eq. 5.4), a scalar; the thesis adds it 0.01 times to the
    loss.

    Raises:
        ValueError: there is no pass.
    """
    if not passes:
        raise ValueError("no layer has routed a batch, so there is no balance loss")
    return torch.stack([balance_loss(layer.routing) for layer in passes.values()]).sum()


def set_gating(model: nn.Module, gating: Gating) -> None:
    """Replace the gating of all layers of a model, for example by top-1 for inference."""
    for block in moe_blocks(model).values():
        block.gating = gating


def watch_padding(stack: nn.Module) -> None:
    """Let the layers of a stack skip the places that its ``attention_mask`` excludes, in each pass.

    Args:
        stack: the innermost Hugging Face module that is called with ``attention_mask``, and with
            ``input_ids`` or ``inputs_embeds``. The whole model is unsuitable: PEFT calls it without its
            hooks.
    """
    stack.register_forward_pre_hook(_set_padding, with_kwargs=True)


def _set_padding(stack: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = inspect.signature(stack.forward).bind_partial(*args, **kwargs).arguments
    is_token = _token_places({**given, **given.get("kwargs", {})})
    for block in moe_blocks(stack).values():
        block.is_token = is_token


def _token_places(given: Mapping[str, Any]) -> Tensor | None:
    """Return a mask ``(batch, sequence)`` bool of tokens, or None without padding."""
    mask = given.get("attention_mask")
    inputs = given.get("input_ids") if given.get("input_ids") is not None else given.get("inputs_embeds")
    if mask is None or inputs is None or mask.ndim != 2:
        return None
    # With a cache, the mask covers the past too; the new tokens are its end.
    is_token: Tensor = mask[:, -inputs.shape[1] :].bool()
    return None if is_token.all() else is_token
