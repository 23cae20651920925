"""Propagation of a batch's padding to the layers, so that it is neither computed nor counted."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from executors.moe.block import moe_blocks


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
