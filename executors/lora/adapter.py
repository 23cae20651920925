"""One task's adapter: its place in the base model, and its parameters as one flat vector."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from executors.lora.fused_linear import FusedLinear
from executors.lora.randomness import derive_seed
from executors.lora.task import LoraTask


def inject(model: PreTrainedModel) -> dict[str, FusedLinear]:
    """Replace every linear layer of ``model`` except its output head by a ``FusedLinear`` around it.

    The model's own forward stays as it is. The head is left out because it runs only on rows that bear loss.

    Returns:
        the new layers by dotted name, in the model's order.
    """
    head = model.get_output_embeddings()
    sites = {}
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear | Conv1D) and layer is not head:
            sites[name] = FusedLinear(layer)
            model.set_submodule(name, sites[name])
    return sites


@dataclass(frozen=True)
class Factor:
    """One of the two matrices of an adapter at one layer; ``start`` is its place in the flat vector.

    Both are kept as ``[rank, features]``, the form that the products are fastest on. LoRA's B, and so
    PEFT's ``lora_B``, is the transpose of what is kept.
    """

    site: str
    role: Literal["lora_A", "lora_B"]
    rank: int
    features: int
    start: int

    @property
    def name(self) -> str:
        """The tensor's name, as PEFT ends its own."""
        return f"{self.site}.{self.role}.weight"

    def view(self, flat: Tensor) -> Tensor:
        """This factor's part of a flat vector, as ``[rank, features]``."""
        return flat[self.start : self.start + self.rank * self.features].view(self.rank, self.features)

    def peft_view(self, flat: Tensor) -> Tensor:
        """This factor's part of a flat vector, in PEFT's orientation."""
        return self.view(flat) if self.role == "lora_A" else self.view(flat).t()


class AdapterLayout:
    """The order and the shapes of an adapter's matrices: for each layer first A (down), then B (up).

    Attributes:
        sites: names of the layers that have an adapter, in the model's order.
        size: number of parameters.
    """

    def __init__(self, task: LoraTask, sites: Mapping[str, FusedLinear]) -> None:
        """Lay out the adapter that ``task`` asks for.

        Raises:
            ValueError: a target module matches no layer.
        """
        for target in task.target_modules:
            if not any(_is_target(name, target) for name in sites):
                known = ", ".join(sorted({name.rsplit(".", 1)[-1] for name in sites}))
                raise ValueError(f"{task.job_id}: no layer is called {target!r}; the base model has {known}")
        self.sites = tuple(name for name in sites if any(_is_target(name, t) for t in task.target_modules))
        self._factors: dict[str, tuple[Factor, Factor]] = {}
        self.size = 0
        for site in self.sites:
            out_features, in_features = sites[site].weight.shape
            down = Factor(site, "lora_A", task.rank, in_features, self.size)
            up = Factor(site, "lora_B", task.rank, out_features, self.size + task.rank * in_features)
            self._factors[site] = (down, up)
            self.size += task.rank * (in_features + out_features)

    def __iter__(self) -> Iterator[Factor]:
        for pair in self._factors.values():
            yield from pair

    def __contains__(self, site: str) -> bool:
        return site in self._factors

    def factors(self, site: str) -> tuple[Factor, Factor]:
        """Return (down, up) of one layer."""
        return self._factors[site]

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """View a flat vector as named matrices, in PEFT's orientation."""
        return {factor.name: factor.peft_view(flat) for factor in self}

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Copy named matrices, in PEFT's orientation, into a new flat vector.

        Raises:
            ValueError: names or shapes are not those of this layout.
        """
        flat = torch.zeros(self.size)
        expected = self.split(flat)
        odd = [
            name
            for name in sorted(expected.keys() | tensors.keys())
            if name not in expected or name not in tensors or expected[name].shape != tensors[name].shape
        ]
        if odd:
            raise ValueError(f"the tensors do not fit the base model and the task: {', '.join(odd[:5])}")
        for name, matrix in expected.items():
            matrix.copy_(tensors[name])
        return flat


def initial_parameters(layout: AdapterLayout, seed: int) -> Tensor:
    """Draw LoRA's start: A Kaiming-uniform, B zero, so that a new adapter changes nothing (as in PEFT)."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "weights"))
    flat = torch.zeros(layout.size)
    for site in layout.sites:
        down, _ = layout.factors(site)
        bound = 1.0 / math.sqrt(down.features)
        down.view(flat).uniform_(-bound, bound, generator=generator)
    return flat


class Adapter:
    """An adapter's parameters on the device, kept as one vector with the matrices as views into it.

    One vector, because then clipping and AdamW cost a kernel or two for a whole adapter. Gradients gather in
    a second vector in the same way.

    Attributes:
        vector: all parameters, float32; what the optimizer steps.
        gradient: their gradients, in the same places; the same tensor for as long as the adapter lives.
    """

    def __init__(self, layout: AdapterLayout, parameters: Tensor, device: torch.device) -> None:
        self.vector = nn.Parameter(parameters.to(device, torch.float32, copy=True))
        self.gradient = torch.zeros_like(self.vector, requires_grad=False)
        self.vector.grad = self.gradient
        self._matrices = {}
        for site in layout.sites:
            down, up = layout.factors(site)
            self._matrices[site] = self._leaf(down), self._leaf(up)

    def matrices(self, site: str) -> tuple[Tensor, Tensor]:
        """Return the leaves (down, up) of one layer."""
        return self._matrices[site]

    def _leaf(self, factor: Factor) -> Tensor:
        leaf = factor.view(self.vector.detach()).requires_grad_()
        leaf.grad = factor.view(self.gradient)
        return leaf


def _is_target(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")
