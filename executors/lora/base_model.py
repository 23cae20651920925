"""The frozen base model that all adapters of a node share."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from jinja2 import TemplateSyntaxError
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from executors.lora.adapter import inject
from executors.lora.default_base import default_base_directory
from executors.lora.fused_layers import FusedHead
from executors.lora.model_files import (
    fault_in_files,
    fault_in_tokenizer,
    fault_in_tokenizer_files,
    file_of_chat_template,
)
from executors.lora.model_kind import BaseModelError, blamed_on_config, is_classifier, one_line, read_config
from executors.lora.objective import Objective, next_tokens, text_class
from executors.lora.packed_attention import PACKED_ATTENTION
from executors.lora.pretrained import load_pretrained, refuse_missing
from executors.lora.probe.deviation import UnprovenBaseError
from executors.lora.probe.proof import Proof
from executors.lora.probe.prove import prove
from executors.lora.randomness import derive_seed
from executors.lora.shared_base import SharedBase, empty_windows, fault_in_lengths

_ERROR_CHARACTERS = 300


def load_base(
    directory: Path | None = None, device: torch.device | str = "cpu", address: str | None = None
) -> SharedBase:
    """Load a local Hugging Face directory and freeze it: float32 on a CPU, bfloat16 on CUDA.

    Without a directory, the small default model is used; the first call trains it (see ``default_base``). A
    classifier whose weights have no head gets one, the same each time.

    Args:
        address: name by which users load the model; default: the folder's name.

    Raises:
        BaseModelError: the directory cannot be used. Its weights must be complete, unquantised safetensors;
            pickled weights are refused, since loading them runs code. The tokenizer must have at most as many
            tokens as the model has embeddings, and a valid chat template. The model must be a causal language
            model or a sequence classifier. `prove` must show that it computes the same in packed batches as
            alone.
    """
    directory = default_base_directory() if directory is None else directory
    base = load_unproven(directory, read_config(directory), torch.device(device))
    with blamed_on_config(directory):
        return replace(base, address=address or directory.name, proof=_proof(base))


def load_unproven(directory: Path, config: PretrainedConfig, device: torch.device) -> SharedBase:
    """Load a base model after all checks except the proof.

    Args:
        device: device of the training, which determines the type of its parameters.

    Raises:
        BaseModelError: see `load_base`.
    """
    fault = fault_in_files(directory)
    if fault is not None:
        raise BaseModelError(f"{directory}: {fault}")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with blamed_on_config(directory):
        model, objective = _load_model(directory, config, dtype)
        if not model._supports_attention_backend:
            what = f"{type(model).__name__} does not support selecting an attention implementation"
            raise BaseModelError(f"{directory}: {what}")
        model.set_attn_implementation(PACKED_ATTENTION)
        tokenizer = load_tokenizer(directory, model)
    # Evaluation mode: dropout inside the base would draw from global random state, shared by all tasks.
    model.eval().requires_grad_(False).to(device)
    with blamed_on_config(directory):
        fault = fault_in_lengths(config.get_text_config(), objective.position_offset)
        if fault is not None:
            raise BaseModelError(f"{directory}: config.json: {fault}")
        heads = tuple(FusedHead.put_into(model, name) for name in objective.own)
        sites = inject(model, objective.plain)
        return SharedBase(directory, model, tokenizer, objective, sites, heads)


def _proof(base: SharedBase) -> Proof:
    try:
        return prove(base)
    except UnprovenBaseError as error:
        config = base.model.config.get_text_config()
        if empty := empty_windows(config):
            fields = ", ".join(f"{name} {getattr(config, name)}" for name in empty)
            raise BaseModelError(
                f"{base.directory}: config.json: {fields}: no token attends to any: use null for no window"
            ) from error
        raise


def load_tokenizer(directory: Path, model: PreTrainedModel) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model.

    Raises:
        BaseModelError: it is missing, or does not fit the model.
    """
    tokenizer = read_tokenizer(directory)
    rows = cast(nn.Embedding, model.get_input_embeddings()).weight.shape[0]
    fault = fault_in_tokenizer(tokenizer.get_vocab(), rows)
    if fault is not None:
        raise BaseModelError(f"{directory}: {fault}")
    fault = None if is_classifier(model.config) else _fault_in_chat_template(tokenizer)
    if fault is not None:
        raise BaseModelError(
            f"{directory}: {file_of_chat_template(directory)}: {fault}: correct it, or use the base model's "
            "own"
        )
    return tokenizer


def read_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer from its files alone, without code of the directory.

    Raises:
        BaseModelError: it is missing, or cannot be loaded.
    """
    fault = fault_in_tokenizer_files(directory)
    if fault is not None:
        raise BaseModelError(f"{directory}: {fault}")
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        # Many libraries make tokenizers, each with its own errors.
        what = one_line(error)
        raise BaseModelError(
            f"{directory}: the tokenizer cannot be loaded: {what}: copy the base model's tokenizer files here"
        ) from error
    return tokenizer


def _fault_in_chat_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return why the chat template can render no chat; None if it may render one, or without a template."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    if template is None:
        return None
    if not isinstance(template, str):
        return f"the chat template is of type {type(template).__name__}, not text"
    chat = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    try:
        tokenizer.apply_chat_template(chat, tokenize=False)
    except TemplateSyntaxError as error:
        what = " ".join((error.message or "").split())[:_ERROR_CHARACTERS]
        return f"the chat template has a syntax error in line {error.lineno}: {what}"
    except Exception:
        # A valid template may refuse this chat, for example since it has no system turn.
        return None
    return None


def _load_model(
    directory: Path, config: PretrainedConfig, dtype: torch.dtype
) -> tuple[PreTrainedModel, Objective]:
    loader: Any = AutoModelForSequenceClassification if is_classifier(config) else AutoModelForCausalLM
    model, missing = load_pretrained(loader, directory, config, dtype)
    objective = text_class(directory, model) if is_classifier(config) else next_tokens(directory, model)
    own = tuple(f"{name}." for name in objective.own)
    # For example, weights of the body alone.
    refuse_missing(directory, model, [name for name in missing if not name.startswith(own)])
    if missing:
        for name in objective.own:
            _draw(model.get_submodule(name), config.get_text_config().initializer_range)
    return model, objective


def _draw(head: nn.Module, deviation: float) -> None:
    """Initialise a head without weights, in the same way on all nodes, so that runs can be compared."""
    generator = torch.Generator().manual_seed(derive_seed(0, "head"))
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * deviation)
            else:
                parameter.zero_()
