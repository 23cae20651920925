"""Models with our layers as files: Hugging Face's own, and a small JSON beside them."""

from pathlib import Path

import transformers
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from executors.moe.conversion.convert import Conversion, convert_structure
from executors.moe.conversion.drop_in import adopt, published_state
from executors.moe.gating import Gating

DESCRIPTION = "moe.json"
TENSORS = "model.safetensors"


class MoeDescription(BaseModel):
    """What the model's configuration does not say.

    Attributes:
        gating: of all layers.
        conversion: how the dense model was converted; none for a model whose kind has experts of its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gating: Gating
    conversion: Conversion | None = None


def save(model: PreTrainedModel, description: MoeDescription, directory: Path) -> None:
    """Write ``config.json``, ``model.safetensors`` and ``moe.json``.

    What was adopted is written in the model's own form, which Hugging Face loads by itself. A converted model
    is not: Hugging Face would find no weights for its feed-forward networks.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if description.conversion is None:
        model.save_pretrained(directory, state_dict=published_state(model))
    else:
        model.config.architectures = [type(model).__name__]
        model.config.dtype = model.dtype
        model.config.save_pretrained(directory)
        save_model(model, str(directory / TENSORS), metadata={"format": "pt"})
    (directory / DESCRIPTION).write_text(description.model_dump_json(indent=2) + "\n", encoding="utf-8")


def load(directory: Path) -> tuple[PreTrainedModel, MoeDescription]:
    """Read what `save` has written, on the CPU, for inference until ``train()`` is called.

    Raises:
        ValueError: a file is missing or does not fit; the message names the directory.
    """
    if not (directory / DESCRIPTION).is_file():
        raise ValueError(
            f"{directory.name}: no model with gated experts, since it has no {DESCRIPTION}: a dense model is "
            "given experts by a job of kind moe-train (conversion)"
        )
    try:
        description = MoeDescription.model_validate_json((directory / DESCRIPTION).read_bytes())
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        architecture = _architecture(config)
        if description.conversion is None:
            model: PreTrainedModel = architecture.from_pretrained(directory, local_files_only=True)
            adopt(model, description.gating)
        else:
            model = architecture._from_config(config, dtype=config.dtype)
            convert_structure(model, description.conversion, description.gating)
            load_model(model, directory / TENSORS)
    except (OSError, ValidationError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error).replace(f"{directory}/", "")
        raise ValueError(
            f"{directory.name}: no model with gated experts, as a job that trains leaves it: {reason}"
        ) from error
    return model.eval(), description


def _architecture(config: PretrainedConfig) -> type[PreTrainedModel]:
    for name in config.architectures or ():
        found = getattr(transformers, name, None)
        if isinstance(found, type) and issubclass(found, PreTrainedModel):
            return found
    raise ValueError(f"config.json names no architecture that transformers has: {config.architectures}")
