"""Attention over a packed batch, as an attention implementation that transformers calls by name."""

import sys
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

PACKED_ATTENTION = "millrace_packed"

WITHOUT_EFFECT = frozenset(
    {
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "deterministic",
        "dropout",
        "max_length_k",
        "max_length_q",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "past_key_values",
        "position_ids",
        "return_dict",
        "sliding_window",
        "use_cache",
    }
)
"""Arguments without effect here. Transformers' eager functions ignore them, too: dropout is off in evaluation
mode, a window is longer than the sequences, and the others are for caches and other kernels."""


class UnknownAttentionArgumentError(ValueError):
    """A model passes an argument to its attention that packed attention would drop.

    Attributes:
        argument: name of the argument.
    """

    def __init__(self, module: nn.Module, argument: str) -> None:
        self.argument = argument
        super().__init__(f"{type(module).__name__} passes {argument!r} to attention")


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    sequence_runs: tuple[tuple[int, int], ...],
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend within each sequence only: to the tokens before, or to all if the attention is not causal.

    A run of equally long sequences is one call on ``[count, heads, tokens, features]``; so a batch of equal
    lengths costs one call, a ragged one a call for each run, and none pays for a mask over all T x T pairs. A
    sequence's result does not depend on its neighbours.

    Args:
        query: ``[1, heads, T, features]``.
        key: ``[1, key_heads, T, features]``, where ``key_heads`` divides ``heads``.
        value: like ``key``.
        sequence_runs: (tokens, count) of each run; their products sum to T.
        is_causal: overrides the module's own attribute.
        softcap: limit of the scores, as in Gemma 2.
        s_aux: the heads' sinks, ``[heads]``, as in gpt-oss.

    Returns:
        ``[1, T, heads, features]``, and no attention weights.

    Raises:
        UnknownAttentionArgumentError: there is a mask, or an argument that would be dropped.
    """
    _refuse_unknown(module, attention_mask, others)
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    extra = {"softcap": softcap, "s_aux": s_aux}
    attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    if softcap is None and s_aux is None:
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))

        def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            attended = scaled_dot_product_attention(queries, keys, values, is_causal=is_causal, scale=scaling)
            return attended.transpose(1, 2)

    else:
        own = _own_attention(module, "softcap" if s_aux is None else "s_aux")

        def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            mask = _causal_mask(queries) if is_causal else None
            return own(module, queries, keys, values, mask, scaling=scaling, dropout=0.0, **extra)[0]

    rows = [tokens * count for tokens, count in sequence_runs]
    parts = zip(sequence_runs, *(states[0].split(rows, dim=1) for states in (query, key, value)), strict=True)
    outputs = []
    for (tokens, count), *states in parts:
        queries, keys, values = (part.unflatten(1, (count, tokens)).transpose(0, 1) for part in states)
        outputs.append(attend(queries, keys, values).flatten(0, 1))
    return torch.cat(outputs).unsqueeze(0), None


def _refuse_unknown(module: nn.Module, attention_mask: Tensor | None, others: dict[str, Any]) -> None:
    if attention_mask is not None:
        raise UnknownAttentionArgumentError(module, "attention_mask")
    for name, argument in others.items():
        if argument is not None and name not in WITHOUT_EFFECT:
            raise UnknownAttentionArgumentError(module, name)


def _own_attention(module: nn.Module, argument: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return the eager attention of the model's own file.

    Torch's kernels have neither soft caps nor sinks, and models differ in their rounding. Transformers'
    result for this model is the only definition.
    """
    own = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if own is None:
        raise UnknownAttentionArgumentError(module, argument)
    return cast(Callable[..., tuple[Tensor, Tensor | None]], own)


def _causal_mask(queries: Tensor) -> Tensor:
    """Return a mask that is added to scores so that no token attends to a later one: ``[1, 1, tokens,
    tokens]``."""
    tokens = queries.shape[-2]
    lowest = torch.finfo(queries.dtype).min
    return queries.new_full((tokens, tokens), lowest).triu(1)[None, None]


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
