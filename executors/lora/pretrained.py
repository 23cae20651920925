"""Loading of weights into the model of a configuration, with neither missing nor surplus ones."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_model
from transformers import PretrainedConfig, PreTrainedModel

from executors.lora.model_files import (
    USE_UNQUANTISED,
    WEIGHTS,
    file_of_weight,
    stored_weights,
    weights_not_floating,
)
from executors.lora.model_kind import DEVICE_ERRORS, BaseModelError, blamed_on_config, one_line

_NAMED_AT_MOST = 3
_OLD_BUFFERS = re.compile(r"rotary_emb\.inv_freq$|position_ids$|attn(ention)?\.(masked_)?bias$")
"""Tables that older versions of transformers saved with the weights; the present ones compute them."""
_OTHER_MODEL = "use a config.json and weights that were saved together"


def load_pretrained(
    loader: Any,
    directory: Path,
    config: PretrainedConfig,
    dtype: torch.dtype | Literal["auto"],
) -> tuple[PreTrainedModel, list[str]]:
    """Load safetensors weights into the model that a configuration describes.

    Args:
        loader: one of transformers' `AutoModelFor...`.
        dtype: type of the parameters; "auto" is that of the configuration or else of the file.

    Returns:
        the model, and the names of its weights that no file has, see `refuse_missing`.

    Raises:
        BaseModelError: the configuration describes no model, or one of other shapes, or weights are not
            floating point numbers.
        torch.OutOfMemoryError, torch.AcceleratorError, MemoryError: the device is too small, or lost.
    """
    _refuse_integers(loader, directory, config)
    try:
        model, loading = loader.from_pretrained(
            directory,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except DEVICE_ERRORS:
        raise
    except Exception as error:
        # Test the configuration alone.
        with blamed_on_config(directory), torch.device("meta"):
            loader.from_config(config, trust_remote_code=False)
        what = one_line(error)
        raise BaseModelError(
            f"{directory}: config.json: describes a model into which the weights cannot be loaded: {what}: "
            f"{_OTHER_MODEL}"
        ) from error
    _refuse_mismatched(directory, loading["mismatched_keys"])
    _refuse_surplus(directory, model, loading["unexpected_keys"], loading["missing_keys"])
    return model, sorted(loading["missing_keys"])


def load_weights(directory: Path, model: PreTrainedModel) -> None:
    """Load the one safetensors file of a directory into a model that transformers cannot build by itself.

    Raises:
        BaseModelError: weights are missing or left over, have other shapes, or are not floating point
            numbers.
    """
    described = model.state_dict()
    stored = stored_weights(directory)
    _refuse_quantised(directory, weights_not_floating(directory), model)
    _refuse_mismatched(
        directory,
        [
            (name, shape, described[name].shape)
            for name, shape in stored.items()
            if name in described and shape != tuple(described[name].shape)
        ],
    )
    missing, surplus = load_model(model, directory / WEIGHTS, strict=False)
    refuse_missing(directory, model, missing)
    _refuse_surplus(directory, model, surplus, ())


def refuse_missing(directory: Path, model: PreTrainedModel, missing: Collection[str]) -> None:
    """Raise an error if weights are missing, since the model would get untrained ones.

    Raises:
        BaseModelError: weights are missing.
    """
    if missing:
        raise BaseModelError(
            f"{directory}: {file_of_weight(directory)}: {len(missing)} weights of {type(model).__name__} are "
            f"missing, such as {_some(missing)}: {_OTHER_MODEL}"
        )


def _refuse_integers(loader: Any, directory: Path, config: PretrainedConfig) -> None:
    """Raise an error if a parameter would be loaded from integers: transformers converts them without their
    scale.

    A model's tables, such as the numbers of positions, may be integers.
    """
    integers = weights_not_floating(directory)
    if not integers:
        return
    with blamed_on_config(directory), torch.device("meta"):
        model: PreTrainedModel = loader.from_config(config, trust_remote_code=False)
    _refuse_quantised(directory, integers, model)


def _refuse_mismatched(
    directory: Path, mismatched: Iterable[tuple[str, Sequence[int], Sequence[int]]]
) -> None:
    """Raise an error if weights have other shapes than the model.

    Args:
        mismatched: the name of each, its shape in the file, and that in the model.
    """
    found = sorted(mismatched)
    if found:
        name, stored, described = found[0]
        raise BaseModelError(
            f"{directory}: {file_of_weight(directory, name)}: {len(found)} weights have other shapes than "
            f"config.json describes, such as {name}: {list(stored)} instead of {list(described)}: "
            f"{_OTHER_MODEL}"
        )


def _refuse_quantised(directory: Path, integers: Mapping[str, str], model: PreTrainedModel) -> None:
    found = sorted(name for name in integers if not _is_table(model, name))
    if found:
        raise BaseModelError(
            f"{directory}: {file_of_weight(directory, found[0])}: {len(found)} weights are not floating "
            f"point numbers, such as {found[0]}, which is {integers[found[0]]}: {USE_UNQUANTISED}"
        )


def _is_table(model: PreTrainedModel, name: str) -> bool:
    """Return whether a weight in a file is a buffer of the model, or of an older version of it."""
    prefix = f"{model.base_model_prefix}."
    parameters = dict(model.named_parameters())
    if any(place in parameters for place in (name, prefix + name, name.removeprefix(prefix))):
        return False
    buffers = {name.rpartition(".")[2] for name, _ in model.named_buffers()}
    ignored = model._keys_to_ignore_on_load_unexpected or ()
    return (
        name.rpartition(".")[2] in buffers
        or _OLD_BUFFERS.search(name) is not None
        or any(re.search(pattern, name) for pattern in ignored)
    )


def _refuse_surplus(
    directory: Path, model: PreTrainedModel, surplus: Iterable[str], missing: Collection[str]
) -> None:
    """Raise an error if there are weights without a place in the model: they are another model's.

    transformers has removed those that it ignores. The heads of a pretrained body may remain if the model
    gets a new head.
    """
    buffers = {name.rpartition(".")[2] for name, _ in model.named_buffers()}
    found = [
        name
        for name in surplus
        if name.rpartition(".")[2] not in buffers and _OLD_BUFFERS.search(name) is None
    ]
    if missing:
        body = f"{model.base_model_prefix}."
        found = [name for name in found if name.startswith(body) and ".pooler." not in name]
    if found:
        raise BaseModelError(
            f"{directory}: {file_of_weight(directory, min(found))}: has {len(found)} weights that "
            f"{type(model).__name__} does not have as config.json describes it, such as {_some(found)}: "
            f"{_OTHER_MODEL}"
        )


def _some(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)[:_NAMED_AT_MOST])
