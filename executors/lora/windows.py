"""Longest sequence that no limit of a model's attention affects."""

from transformers import PretrainedConfig

UNLIMITED_TOKENS = 1_048_576
"""Longest sequence of a job."""

LEAST_TOKENS = 2
"""One token to predict from, and one to predict."""

_WINDOWS = ("sliding_window", "attention_chunk_size", "attention_window", "local_attention")
_CHANGING_ROTARY = ("dynamic", "longrope")
"""Kinds of rotary positions whose frequencies depend on the longest sequence of a batch, once it is longer
than in the model's training: a neighbour would change them."""


def longest_sequence_tokens(config: PretrainedConfig, position_offset: int) -> int:
    """Return the longest sequence for which packed attention gives the model's result.

    A window has no effect on sequences that fit into it; longer ones are not supported.

    Args:
        position_offset: position of a sequence's first token.
    """
    limits = [UNLIMITED_TOKENS]
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None:
        limits.append(positions - position_offset)
    for name in _WINDOWS:
        window = getattr(config, name, None)
        # Some configurations have 0 instead of None if there is no window.
        if isinstance(window, int) and window > 0:
            limits.append(window)
    rotary = getattr(config, "rope_parameters", None) or {}
    # One for all layers, or one for each kind of layer.
    for each in (rotary, *(value for value in rotary.values() if isinstance(value, dict))):
        if each.get("rope_type") in _CHANGING_ROTARY:
            limits.append(each.get("original_max_position_embeddings") or positions or UNLIMITED_TOKENS)
    return min(limits)


def fault_in_lengths(config: PretrainedConfig, position_offset: int) -> str | None:
    """Return why no sequence can be trained on within the limits of a model's attention; None if one can."""
    longest = longest_sequence_tokens(config, position_offset)
    if longest >= LEAST_TOKENS:
        return None
    fields = {name: getattr(config, name, None) for name in ("max_position_embeddings", *_WINDOWS)}
    found = ", ".join(f"{name} {value}" for name, value in fields.items() if value is not None)
    return f"{found}: sequences of {longest} tokens at most, and training takes {LEAST_TOKENS} at least"


def empty_windows(config: PretrainedConfig) -> list[str]:
    """Return the fields that give a model a window of 0 tokens, unless the model treats 0 as no window."""
    windows = {name: getattr(config, name, None) for name in _WINDOWS}
    return [name for name, tokens in windows.items() if isinstance(tokens, int) and tokens <= 0]
