"""The entire structure of the base model on every rank, with the parameters of some stages only.

"Each machine maintains the entire model structure and partial model parameters" (Ymir, section 6.2).
Parameters that are not held are on torch's meta device: they have a shape, but no memory. So every rank can
lay out a whole adapter, and read and write whole checkpoints, with any stages.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from executors.lora.base_model import SharedBase, load_unproven
from executors.lora.model_files import file_of_weight, weight_files
from executors.lora.model_kind import BaseModelError, is_classifier, read_config
from executors.tuner.pipeline.families import FAMILIES, Family
from executors.tuner.pipeline.partition import cut

_BASE_LAYER = ".base_layer."
"""Part that `inject` adds to the names of the layers that it wraps."""


@dataclass(frozen=True)
class Structure:
    """A base model and its module names.

    Attributes:
        base: the engine's base model. If it was built by `load_structure`, its parameters are on the meta
            device until a stage is placed.
        family: module names of the model.
        dtype: type of the parameters and of the hidden states between stages.
    """

    base: SharedBase
    family: Family
    dtype: torch.dtype

    def frozen(self, layers: int) -> "Structure":
        """Return the model without adapters on its first `layers` layers.

        Raises:
            ValueError: it has no more layers.
        """
        return replace(self, base=self.base.frozen(layers))

    @property
    def layers(self) -> Sequence[nn.Module]:
        """Decoder layers."""
        modules = self.base.model.get_submodule(self.family.layers)
        assert isinstance(modules, nn.ModuleList), "all supported families keep their layers in a list"
        return list(modules)

    def modules_of(self, layers: range) -> tuple[str, ...]:
        """Return the dotted names of the modules of the stage with these layers."""
        inner = tuple(f"{self.family.layers}.{number}" for number in layers)
        beginning = self.family.beginning if layers.start == 0 else ()
        last = layers.stop == len(self.layers)
        ending = (self.family.norm, self.base.objective.head_name) if last else ()
        return (*beginning, *inner, *ending)

    def logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """Return the logits ``[rows, classes]`` of some rows of the last layer's output, ``[1, T,
        features]``."""
        model = self.base.model
        return self.base.objective.logits(model, self.family.outputs(model, hidden, rows))

    def sites_of(self, layers: range) -> tuple[str, ...]:
        """Return the names of the linear layers in some decoder layers, in the model's order."""
        inside = tuple(f"{self.family.layers}.{number}." for number in layers)
        return tuple(name for name in self.base.sites if name.startswith(inside))


def load_structure(directory: Path, device: torch.device) -> Structure:
    """Check the files of a model and build it without its parameters: bfloat16 on CUDA, float32 on a CPU.

    The probe cannot run without parameters, so only families with known modules are accepted.

    Raises:
        BaseModelError: the model is missing, it or its tokenizer is unfit (see `load_base`), or its family
            cannot be cut.
    """
    config = read_config(directory)
    if is_classifier(config):
        raise BaseModelError(f"{directory}: a classifier cannot be built without its parameters")
    family = _family(directory, config.model_type)
    base = load_unproven(directory, config, device, on_meta=True)
    _place_rotary(base.model, family, device)
    return Structure(base, family, base.model.dtype)


def structure_of(base: SharedBase) -> Structure:
    """Return the structure of a model that is loaded as a whole.

    Raises:
        BaseModelError: its family cannot be cut.
    """
    family = _family(base.directory, base.model.config.model_type)
    return Structure(base, family, next(base.model.parameters()).dtype)


def _family(directory: Path, model_type: str) -> Family:
    family = FAMILIES.get(model_type)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise BaseModelError(f"{directory}: a {model_type!r} cannot be cut into stages; {known} can")
    return family


def _place_rotary(model: PreTrainedModel, family: Family, device: torch.device) -> None:
    # The frequencies are in no file: they follow from the configuration, and every stage needs them.
    if family.rotary is not None:
        rotary = type(model.get_submodule(family.rotary))
        model.set_submodule(family.rotary, rotary(model.config).to(device))


class StageWeights:
    """Parameters of the stages that a rank holds.

    A rank that runs stage s of forward tasks runs stage S + 1 - s of reverse ones, so it needs two stages in
    turn. Both are kept on the device if they fit; otherwise the next one is read into host memory ahead of
    the switch (`read`), and replaces the one before (`drop`, `place`).

    Attributes:
        partition: the layers of each stage.
    """

    def __init__(self, structure: Structure, partition: Sequence[range], device: torch.device) -> None:
        """Find the parameters in the model's files.

        Raises:
            BaseModelError: no file has a parameter under its own name.
        """
        self.partition = tuple(partition)
        self._structure = structure
        self._device = device
        self._files = dict(_tensor_files(structure.base.directory))
        self._file_names = _file_names(structure.base, self._files)
        self._held: dict[int, dict[str, Tensor]] = {}

    def holds(self, stage: int) -> bool:
        """Return whether the parameters of a stage are on the device."""
        return stage in self._held

    def size_bytes(self, stages: set[int]) -> int:
        """Return the device memory of the parameters of some stages (bytes); tied ones count once."""
        model = self._structure.base.model
        sizes = {
            self._file_names[name]: model.get_parameter(name).numel() * self._structure.dtype.itemsize
            for stage in stages
            for name in self._parameters(stage)
        }
        return sum(sizes.values())

    def read(self, stage: int) -> dict[str, Tensor]:
        """Read a stage's parameters into host memory, pinned if the device is a GPU, by their names in the
        model's files."""
        wanted = {self._file_names[name] for name in self._parameters(stage)}
        tensors = {}
        by_file: dict[Path, list[str]] = {}
        for name in sorted(wanted):
            by_file.setdefault(self._files[name], []).append(name)
        for path, names in by_file.items():
            with safe_open(path, framework="pt") as file:
                for name in names:
                    stored = file.get_tensor(name)
                    host = torch.empty(
                        stored.shape, dtype=self._structure.dtype, pin_memory=self._device.type == "cuda"
                    )
                    tensors[name] = host.copy_(stored)
        return tensors

    def place(self, stage: int, tensors: Mapping[str, Tensor]) -> None:
        """Copy a stage to the device from the result of `read`; parameters of other stages there are
        shared."""
        model = self._structure.base.model
        known = {name: tensor for held in self._held.values() for name, tensor in held.items()}
        held: dict[str, Tensor] = {}
        for name in self._parameters(stage):
            source = self._file_names[name]
            tensor = held.get(source, known.get(source))
            if tensor is None:
                tensor = tensors[source].to(self._device, non_blocking=True)
            held[source] = tensor
            _set_parameter(model, name, tensor)
        self._held[stage] = held

    def drop(self, stage: int) -> None:
        """Remove a stage from the device."""
        del self._held[stage]
        model = self._structure.base.model
        for name in self._parameters(stage):
            _set_parameter(model, name, torch.empty_like(model.get_parameter(name), device="meta"))

    def tensors(self, stage: int) -> Iterator[Tensor]:
        """Yield the parameters of a held stage, on the device."""
        yield from self._held[stage].values()

    def _parameters(self, stage: int) -> list[str]:
        model = self._structure.base.model
        return [
            f"{module}.{name}"
            for module in self._structure.modules_of(self.partition[stage])
            for name, _ in model.get_submodule(module).named_parameters()
        ]


def parameter_costs(structure: Structure) -> list[int]:
    """Return the costs of the layers for `cut`: their parameters; the last one includes those of the head.

    A matrix product costs one multiplication per token and element of the matrix. Embeddings cost nothing.
    The head runs only on tokens that bear loss, so its cost is too high if these are few.
    """
    costs = [sum(parameter.numel() for parameter in layer.parameters()) for layer in structure.layers]
    head = structure.base.model.get_submodule(structure.base.objective.head_name)
    costs[-1] += sum(parameter.numel() for parameter in head.parameters())
    return costs


def partition_by_parameters(structure: Structure, stages: int) -> tuple[range, ...]:
    """Cut a model so that the largest stage is as small as possible.

    Raises:
        PartitionError: it has fewer layers than stages.
    """
    return cut(parameter_costs(structure), stages)


def _tensor_files(directory: Path) -> Iterator[tuple[str, Path]]:
    for path in (directory / name for name in weight_files(directory)):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                yield name, path


def _file_names(base: SharedBase, files: Mapping[str, Path]) -> dict[str, str]:
    """Return the file name of each parameter: tied ones share one of their names, and some files leave out
    the model's own prefix."""
    tied: dict[int, list[str]] = {}
    for name, parameter in base.model.named_parameters(remove_duplicate=False):
        tied.setdefault(id(parameter), []).append(name)
    names: dict[str, str] = {}
    for together in tied.values():
        originals = [name.replace(_BASE_LAYER, ".") for name in together]
        bare = [name.removeprefix(f"{base.model.base_model_prefix}.") for name in originals]
        found = next((candidate for candidate in (*originals, *bare) if candidate in files), None)
        if found is None:
            raise BaseModelError(
                f"{base.directory}: {file_of_weight(base.directory)}: has no {originals[0]}, or has it under "
                "a name that only transformers reads: load the model with transformers and save it again"
            )
        names |= dict.fromkeys(together, found)
    return names


def _set_parameter(model: PreTrainedModel, name: str, tensor: Tensor) -> None:
    module, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(module), leaf, nn.Parameter(tensor, requires_grad=False))
