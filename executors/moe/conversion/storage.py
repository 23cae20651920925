"""Files of models with our layers: Hugging Face's own, and a small JSON file."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError
from pydantic_core import from_json
from safetensors.torch import save_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from executors.lora.faults import described
from executors.lora.model_files import WEIGHTS, fault_in_files, weight_files
from executors.lora.model_kind import BaseModelError, blamed_on_config, is_classifier, read_any_config
from executors.lora.pretrained import load_pretrained, load_weights, refuse_missing
from executors.moe.conversion.convert import LayerConversion, convert_structure
from executors.moe.conversion.drop_in import SPARSE_FAMILIES, adopt, family_of, own_gating, published_state
from executors.moe.gating import Gating
from schemas.base import Record

DESCRIPTION = "moe.json"
_AS_LEFT = "use the directory as a job of kind moe-train left it"


class MoeDescription(Record):
    """The gating and conversion of a model, which its configuration does not state.

    Attributes:
        gating: gating of all layers.
        conversion: conversion of the dense model; None for a kind of model with its own experts.
    """

    gating: Gating
    conversion: LayerConversion | None = None


def save(model: PreTrainedModel, description: MoeDescription, directory: Path) -> None:
    """Write ``config.json``, ``model.safetensors`` and ``moe.json``.

    Adopted layers are written in the model's own form, which Hugging Face loads by itself. It cannot load a
    converted model: the weights of its feed-forward networks are missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if description.conversion is None:
        model.save_pretrained(directory, state_dict=published_state(model))
    else:
        model.config.architectures = [type(model).__name__]
        model.config.dtype = model.dtype
        model.config.save_pretrained(directory)
        save_model(model, str(directory / WEIGHTS), metadata={"format": "pt"})
    (directory / DESCRIPTION).write_text(description.model_dump_json(indent=2) + "\n", encoding="utf-8")


def load(directory: Path) -> tuple[PreTrainedModel, MoeDescription]:
    """Read the files of `save`, or a mixture-of-experts model as transformers saves it, on the CPU, for
    inference until ``train()`` is called.

    Without ``moe.json`` the gating is the model's own.

    Raises:
        BaseModelError: a file is missing or does not fit, or the model has no experts.
    """
    fault = fault_in_files(directory) if directory.is_dir() else None
    if fault is not None:
        raise BaseModelError(f"{directory}: {fault}")
    config = read_any_config(directory)
    if not (directory / DESCRIPTION).is_file():
        return _load_stock(directory, config)
    description = _read_description(directory)
    if description.conversion is None:
        with _blamed_on(directory, DESCRIPTION, _AS_LEFT):
            family_of(config)
        model = load_whole(directory, config, "auto")
        with _blamed_on(directory, DESCRIPTION, _AS_LEFT):
            adopt(model, description.gating)
    else:
        model = _load_converted(directory, config, description.conversion, description.gating)
    return model.eval(), description


def _load_stock(directory: Path, config: PretrainedConfig) -> tuple[PreTrainedModel, MoeDescription]:
    if config.model_type not in SPARSE_FAMILIES:
        known = ", ".join(sorted(SPARSE_FAMILIES))
        raise BaseModelError(
            f"{directory}: no model with gated experts, since it has no {DESCRIPTION}, and its type "
            f"{config.model_type!r} has no experts of its own, as these have: {known}. A dense model is "
            "given experts by a job of kind moe-train (conversion)"
        )
    with _blamed_on(directory, "config.json", "use another model"):
        gating = own_gating(config)
    model = load_whole(directory, config, "auto")
    with _blamed_on(directory, "config.json", "use another model"):
        adopt(model, gating)
    return model.eval(), MoeDescription(gating=gating)


def load_whole(
    directory: Path, config: PretrainedConfig, dtype: torch.dtype | Literal["auto"]
) -> PreTrainedModel:
    """Load a model in transformers' own form onto the CPU.

    Args:
        dtype: type of its parameters; "auto" is that of the configuration or else of the file.

    Raises:
        BaseModelError: its kind is unknown, or its weights do not fit.
    """
    model, missing = load_pretrained(_loader_of(config), directory, config, dtype)
    refuse_missing(directory, model, missing)
    return model


def _load_converted(
    directory: Path, config: PretrainedConfig, conversion: LayerConversion, gating: Gating
) -> PreTrainedModel:
    if weight_files(directory) != [WEIGHTS]:
        raise BaseModelError(f"{directory}: {WEIGHTS}: is missing: a converted model has no shards")
    with blamed_on_config(directory):
        model: PreTrainedModel = _loader_of(config).from_config(
            config, dtype=config.dtype, trust_remote_code=False
        )
    with _blamed_on(directory, DESCRIPTION, _AS_LEFT):
        convert_structure(model, conversion, gating)
    load_weights(directory, model)
    return model


def _read_description(directory: Path) -> MoeDescription:
    try:
        content = (directory / DESCRIPTION).read_bytes()
        description = MoeDescription.model_validate_json(content)
    except OSError as error:
        raise BaseModelError(f"{directory}: {DESCRIPTION}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise BaseModelError(f"{directory}: {DESCRIPTION}: {described(error)}: {_AS_LEFT}") from error
    gating = description.gating
    if gating.mode == "adaptive" and "threshold_on" not in from_json(content)["gating"]:
        # Files without the field are of models that were trained with T on the softmax over all experts.
        return MoeDescription(gating=replace(gating, threshold_on="all"), conversion=description.conversion)
    return description


@contextmanager
def _blamed_on(directory: Path, file: str, remedy: str) -> Iterator[None]:
    """Name a file in errors of layers that do not fit it."""
    try:
        yield
    except ValueError as error:
        raise BaseModelError(f"{directory}: {file}: {error}: {remedy}") from error


def _loader_of(config: PretrainedConfig) -> Any:
    """Return one of transformers' `AutoModelFor...`."""
    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM
    return AutoModelForSequenceClassification if is_classifier(config) else AutoModelForCausalLM
