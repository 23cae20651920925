"""The frozen base model that all adapters of a node share."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from jinja2 import TemplateSyntaxError
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from executors.lora.adapter import AdapterLayout, inject
from executors.lora.default_base import default_base_directory
from executors.lora.fused_layers import FusedHead, FusedLinear
from executors.lora.lora_task import LoraTask
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
from executors.lora.probe.deviation import Proof, UnprovenBaseError
from executors.lora.probe.prove import prove
from executors.lora.randomness import derive_seed

UNLIMITED_TOKENS = 1_048_576
"""Longest sequence of a job."""

LEAST_TOKENS = 2
"""One token to predict from, and one to predict."""

_WINDOWS = ("sliding_window", "attention_chunk_size", "attention_window", "local_attention")
_CHANGING_ROTARY = ("dynamic", "longrope")
"""Rotary types that rescale with the longest sequence of a batch, beyond the length of the model's training.
Another task's sequence would change the result."""

_ERROR_CHARACTERS = 300


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
    # The config has one entry for all layers, or one per layer type.
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


@dataclass(frozen=True)
class SharedBase:
    """A frozen causal language model or sequence classifier, ready for adapters.

    Attributes:
        directory: directory of its files.
        model: the model; its linear layers are replaced by those in ``sites``, and a classifier's head by the
            one in ``heads``.
        tokenizer: tokenizer of the model.
        objective: objective of its training.
        sites: layers that can have an adapter, by dotted name.
        heads: modules that each task trains in full: the classifier's head; empty for language models.
        frozen_layers: number of first layers that can have no adapter.
        address: name by which users load the model: on the Hugging Face hub or elsewhere.
        proof: proof that its packed passes are right; None before the proof.
    """

    directory: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    objective: Objective
    sites: Mapping[str, FusedLinear]
    heads: tuple[FusedHead, ...] = ()
    frozen_layers: int = 0
    address: str = ""
    proof: Proof | None = None

    @property
    def layers(self) -> int:
        return int(self.model.config.get_text_config().num_hidden_layers)

    @property
    def head_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the head of a new task, by their names in the model."""
        return {name: tensor for head in self.heads for name, tensor in head.tensors.items()}

    @property
    def precision(self) -> str:
        """Type of the numbers of a pass, such as `bfloat16`."""
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    def layout(self, task: LoraTask, heads: int = 1) -> AdapterLayout:
        """Return the adapter layout of a task; with several heads, one that as many tasks share.

        Raises:
            ValueError: a target module matches no layer.
        """
        return AdapterLayout(task, self.sites, self.head_tensors, heads)

    def frozen(self, layers: int) -> "SharedBase":
        """Return the model without adapters on its first `layers` layers.

        Raises:
            ValueError: it has no more layers.
        """
        if layers >= self.layers:
            raise ValueError(f"{layers} layers cannot be frozen, the base model has {self.layers}")
        sites = {name: site for name, site in self.sites.items() if (layer_of(name) or 0) >= layers}
        return replace(self, sites=sites, frozen_layers=layers) if layers else self

    @property
    def longest_sequence_tokens(self) -> int:
        """Longest sequence that the model processes whole."""
        return longest_sequence_tokens(self.model.config.get_text_config(), self.objective.position_offset)


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


def layer_of(name: str) -> int | None:
    """Return the number of the layer of a module or parameter, by its dotted name; None outside of layers."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)
