"""Files of a task's state: the adapter in PEFT's own format, everything else in safetensors and JSON."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Self, cast

import torch
from peft import LoraConfig
from pydantic import NonNegativeInt
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from executors.lora.adapter import AdapterLayout, is_target
from executors.lora.dataset import Cursor
from executors.lora.lora_task import LoraTask, TaskState
from executors.lora.shared_base import SharedBase
from executors.node.files import digest_of, write_folder
from schemas.base import Record

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_TENSORS = "adapter_model.safetensors"
OPTIMIZER_TENSORS = "optimizer.safetensors"
TRAINING_STATE = "training_state.json"

_PEFT_PREFIX = "base_model.model."
FIRST_MOMENT, SECOND_MOMENT = "exp_avg.", "exp_avg_sq."
"""Prefixes of a parameter's name for AdamW's moments."""


class TaskTrainingState(Record):
    """State of a training besides its tensors: the fields of `TaskState` of the same names."""

    task: LoraTask
    optimizer_steps: NonNegativeInt
    micro_batches: NonNegativeInt
    samples_done: NonNegativeInt
    epoch: NonNegativeInt
    position: NonNegativeInt
    dataset_digest: str

    @classmethod
    def of(cls, state: TaskState) -> Self:
        return cls(
            task=state.task,
            optimizer_steps=state.optimizer_steps,
            micro_batches=state.micro_batches,
            samples_done=state.samples_done,
            epoch=state.cursor.epoch,
            position=state.cursor.position,
            dataset_digest=state.dataset_digest,
        )

    def with_vectors(self, parameters: Tensor, first_moment: Tensor, second_moment: Tensor) -> TaskState:
        """Return the state with these vectors, float32 ``[size]`` each."""
        return TaskState(
            task=self.task,
            parameters=parameters,
            first_moment=first_moment,
            second_moment=second_moment,
            optimizer_steps=self.optimizer_steps,
            micro_batches=self.micro_batches,
            samples_done=self.samples_done,
            cursor=Cursor(self.epoch, self.position),
            dataset_digest=self.dataset_digest,
        )


def publish_adapter(files: Mapping[str, bytes], folder: Path) -> str:
    """Write the adapter of an encoded state to a folder in PEFT's format, and return the digest of its
    tensors; a repeated call has no effect.

    Raises:
        OSError: the disk failed.
    """
    published = {name: files[name] for name in (ADAPTER_CONFIG, ADAPTER_TENSORS)}
    if any(_content(folder / name) != content for name, content in published.items()):
        write_folder(folder, published)
    return digest_of(files[ADAPTER_TENSORS])


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def encode_state(state: TaskState, base: SharedBase) -> dict[str, bytes]:
    """Return a state as the contents of a checkpoint's files, by name."""
    layout = base.layout(state.task)
    moments = {
        **_named(layout, state.first_moment, FIRST_MOMENT),
        **_named(layout, state.second_moment, SECOND_MOMENT),
    }
    # PEFT's own loader and others of its kind expect this metadata.
    adapter = save_tensors(_named(layout, state.parameters, _PEFT_PREFIX), metadata={"format": "pt"})
    return {
        ADAPTER_CONFIG: _json_bytes(_peft_config(state.task, layout, base)),
        ADAPTER_TENSORS: adapter,
        OPTIMIZER_TENSORS: save_tensors(moments),
        TRAINING_STATE: _json_bytes(TaskTrainingState.of(state).model_dump(mode="json")),
    }


def decode_state(files: Mapping[str, bytes], base: SharedBase) -> TaskState:
    """Return the state in the contents of a checkpoint's files.

    Raises:
        ValueError: a file is missing, or the content does not fit the base model.
    """
    missing = {ADAPTER_TENSORS, OPTIMIZER_TENSORS, TRAINING_STATE} - files.keys()
    if missing:
        raise ValueError(f"the checkpoint lacks {', '.join(sorted(missing))}")
    training = TaskTrainingState.model_validate_json(files[TRAINING_STATE])
    layout = base.layout(training.task)
    moments = load_tensors(files[OPTIMIZER_TENSORS])
    return training.with_vectors(
        layout.join(_without_prefix(load_tensors(files[ADAPTER_TENSORS]), _PEFT_PREFIX)),
        layout.join(_without_prefix(moments, FIRST_MOMENT)),
        layout.join(_without_prefix(moments, SECOND_MOMENT)),
    )


def _peft_config(task: LoraTask, layout: AdapterLayout, base: SharedBase) -> dict[str, object]:
    targets = layout.target_modules if task.is_all_linear else list(task.target_modules)
    config = LoraConfig(
        r=task.rank,
        lora_alpha=cast(int, task.alpha),  # any number is valid
        lora_dropout=task.dropout,
        target_modules=targets,
        fan_in_fan_out=any(base.sites[site].is_transposed for site in layout.sites),
        task_type=base.objective.task_type,
        modules_to_save=list(base.objective.own) or None,
        base_model_name_or_path=base.address,
        inference_mode=True,
    )
    fields: dict[str, Any] = config.to_dict()
    # PEFT keeps these as sets, whose order differs between processes.
    fields["target_modules"] = sorted(fields["target_modules"])
    fields["exclude_modules"] = _left_out(targets, base) or None
    if base.frozen_layers:
        fields["layers_to_transform"] = list(range(base.frozen_layers, base.layers))
    return fields


def _left_out(targets: Collection[str], base: SharedBase) -> list[str]:
    """Return the layers that target modules match and that have no adapter here: PEFT would add one to
    them."""
    names = [
        f"{name}.{part}"
        for name in base.objective.plain
        if name not in base.objective.own
        for part, module in base.model.get_submodule(name).named_modules()
        if isinstance(module, nn.Linear)
    ]
    return [name for name in names if any(is_target(name, target) for target in targets)]


def _named(layout: AdapterLayout, flat: Tensor, prefix: str) -> dict[str, Tensor]:
    # Contiguous copies: safetensors refuses tensors that share memory or are transposed views.
    return {
        prefix + name: matrix.clone(memory_format=torch.contiguous_format)
        for name, matrix in layout.split(flat).items()
    }


def _without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _json_bytes(fields: object) -> bytes:
    return json.dumps(fields, indent=2, sort_keys=True).encode()
