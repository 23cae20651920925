"""Attention over a packed batch, as an attention implementation that transformers calls by name."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

PACKED_ATTENTION = "millrace_packed"


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _attention_mask: Tensor | None,
    *,
    sequence_runs: tuple[tuple[int, int], ...],
    scaling: float | None = None,
    **_unused: Any,
) -> tuple[Tensor, None]:
    """Attend within each sequence only: to the tokens before, or to all if the module says that it is not
    causal.

    A run of equally long sequences is one call on ``[count, heads, tokens, features]``; so a batch of equal
    lengths costs one call, a ragged one a call for each run, and none pays for a mask over all T x T pairs.
    Nor does a sequence's result depend on its neighbours.

    Args:
        query: ``[1, heads, T, features]``.
        key: ``[1, key_heads, T, features]``, where ``key_heads`` divides ``heads``.
        value: like ``key``.
        sequence_runs: (tokens, count) of each run; their products sum to T.

    Returns:
        ``[1, T, heads, features]``, and no attention weights.
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))
    rows = [tokens * count for tokens, count in sequence_runs]
    parts = zip(sequence_runs, *(states[0].split(rows, dim=1) for states in (query, key, value)), strict=True)
    is_causal = getattr(module, "is_causal", True)
    outputs = []
    for (tokens, count), *states in parts:
        queries, keys, values = (part.unflatten(1, (count, tokens)).transpose(0, 1) for part in states)
        attended = scaled_dot_product_attention(queries, keys, values, is_causal=is_causal, scale=scaling)
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).unsqueeze(0), None


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
