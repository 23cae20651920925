"""The model in a Hugging Face directory, by its configuration: a causal language model, or a classifier."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import cast

import torch
from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
)

from executors.lora.model_files import fault_in_config, has_chat_template
from executors.lora.records import TEXT_RECORDS, LabelledRecords, RecordForm, TextRecords


class BaseModelError(ValueError):
    """A directory without a base model that the engine can use."""


_ERROR_CHARACTERS = 300

DEVICE_ERRORS = (torch.OutOfMemoryError, torch.AcceleratorError, MemoryError)
"""Errors that are unrelated to the model."""


def one_line(error: BaseException) -> str:
    """Return type and message of an error on one line, cut to a length that can be read."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_ERROR_CHARACTERS]


@contextmanager
def blamed_on_config(directory: Path) -> Iterator[None]:
    """Raise any error of the block as a fault of the configuration. transformers' configurations and models
    raise errors of any type if a field has an unusable value.

    Raises:
        BaseModelError: the block has raised an error.
        torch.OutOfMemoryError, torch.AcceleratorError, MemoryError: the device is too small, or lost.
    """
    try:
        yield
    except (BaseModelError, *DEVICE_ERRORS):
        raise
    except Exception as error:
        what = one_line(error)
        raise BaseModelError(
            f"{directory}: config.json: describes no model that can be built: {what}: compare it with the "
            "original's, or download it again"
        ) from error


@dataclass(frozen=True)
class Encoder:
    """Structure of an encoder that classifies by the output of its first token.

    Attributes:
        path: modules from that output to the logits, by dotted names; the head is the last.
        counts_positions_from_padding: whether positions start after the number of the padding token.
    """

    path: tuple[str, ...]
    counts_positions_from_padding: bool = False


ENCODERS: Mapping[str, Encoder] = MappingProxyType(
    {
        "bert": Encoder(("bert.pooler", "classifier")),
        "roberta": Encoder(("classifier",), counts_positions_from_padding=True),
        "xlm-roberta": Encoder(("classifier",), counts_positions_from_padding=True),
    }
)
"""Encoders, by the ``model_type`` of a model's configuration."""


def read_config(directory: Path) -> PretrainedConfig:
    """Read the configuration of a model that the engine may be able to use.

    Raises:
        BaseModelError: there is no configuration, or it is neither of a causal language model nor of a
            classifier by one label of several.
    """
    return check_config(directory, read_any_config(directory))


def read_any_config(directory: Path) -> PretrainedConfig:
    """Read the configuration of a model of any kind.

    Raises:
        BaseModelError: there is no configuration, or it is invalid.
    """
    if not (directory / "config.json").is_file():
        raise BaseModelError(f"{directory}: no Hugging Face model directory (config.json is missing)")
    fault = fault_in_config(directory)
    if fault is not None:
        raise BaseModelError(f"{directory}: {fault}")
    with blamed_on_config(directory):
        config: PretrainedConfig = AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    return config


def check_config(directory: Path, config: PretrainedConfig) -> PretrainedConfig:
    """Return the configuration of a directory if the engine may be able to use its model.

    Raises:
        BaseModelError: see `read_config`.
    """
    with blamed_on_config(directory):
        _refuse_other_kinds(directory, config)
    return config


def _refuse_other_kinds(directory: Path, config: PretrainedConfig) -> None:
    names = config.architectures or []
    if names and not is_classifier(config) and names[0] not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        raise BaseModelError(
            f"{directory}: no causal language model or sequence classifier: its architecture is {names[0]}"
        )
    if is_classifier(config):
        kind = config.problem_type or "single_label_classification"
        labels = len(config.id2label or ())
        if sorted(config.id2label or ()) != list(range(labels)):
            raise BaseModelError(f"{directory}: id2label does not number the labels from 0 to {labels - 1}")
        if kind != "single_label_classification" or labels < 2:
            what = f"problem_type {kind}, {labels} labels"
            raise BaseModelError(
                f"{directory}: {what}: a classifier must choose one label of two at least "
                "(single_label_classification)"
            )


def is_classifier(config: PretrainedConfig) -> bool:
    """Return whether the model is a sequence classifier."""
    names = config.architectures or [""]
    return names[0] in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.values()


def records_in(directory: Path | None) -> RecordForm:
    """Return the form of records for training the model in a directory; without one, the default base model.

    Raises:
        BaseModelError: the engine cannot use the model.
    """
    if directory is None:
        return TEXT_RECORDS
    config = read_config(directory)
    return labels_of(config) if is_classifier(config) else text_records(directory)


def text_records(directory: Path) -> TextRecords:
    """Return the form of records for training the language model in a directory."""
    return TextRecords(reads_chats=has_chat_template(directory))


def labels_of(config: PretrainedConfig) -> LabelledRecords:
    """Return the form of records for training a classifier."""
    names = cast("dict[int, str]", config.id2label)
    return LabelledRecords(
        names=tuple(names[number] for number in range(len(names))),
        pooled="first" if config.model_type in ENCODERS else "last",
        pad_token_id=config.get_text_config().pad_token_id,
    )
