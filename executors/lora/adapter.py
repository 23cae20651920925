"""One task's adapter: its place in the base model, its parameters as one flat vector, and its optimizer."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from executors.lora.fused_layers import FusedLinear, SiteAdapter
from executors.lora.lora_task import AdapterState, LoraTask
from executors.lora.randomness import Masks, derive_seed
from executors.lora.segment_products import Rows

_LINEAR = (nn.Linear.forward, Conv1D.forward)


def inject(model: PreTrainedModel, plain: Collection[str]) -> dict[str, FusedLinear]:
    """Replace the linear layers of ``model`` by a ``FusedLinear`` around each.

    The model's own forward is unchanged. Subclasses of linear layers with their own forward, such as some
    routers, are left as they are.

    Args:
        plain: modules whose layers are unchanged, by dotted names: for example the head, which runs only on
            rows that bear loss.

    Returns:
        the new layers by dotted name, in the model's order.
    """
    outside = tuple(f"{name}." for name in plain)
    sites = {}
    for name, layer in list(model.named_modules()):
        if type(layer).forward in _LINEAR and not f"{name}.".startswith(outside):
            assert isinstance(layer, nn.Linear | Conv1D), "they have the forward of these"
            sites[name] = FusedLinear(layer)
            model.set_submodule(name, sites[name])
    return sites


@dataclass(frozen=True)
class Factor:
    """One of the two matrices of an adapter at one layer; ``start`` is its place in the flat vector.

    Both are stored as ``[rank, features]``, with which the products are fastest. LoRA's B, and so PEFT's
    ``lora_B``, is the transpose of the stored matrix.
    """

    site: str
    role: Literal["lora_A", "lora_B"]
    rank: int
    features: int
    start: int

    @property
    def name(self) -> str:
        """End of the tensor's name in PEFT."""
        return f"{self.site}.{self.role}.weight"

    def view(self, flat: Tensor) -> Tensor:
        """Return this factor's part of a flat vector, as ``[rank, features]``."""
        return flat[self.start : self.start + self.rank * self.features].view(self.rank, self.features)

    def peft_view(self, flat: Tensor) -> Tensor:
        """Return this factor's part of a flat vector, in PEFT's orientation."""
        return self.view(flat) if self.role == "lora_A" else self.view(flat).t()


@dataclass(frozen=True, eq=False)
class HeadTensor:
    """A tensor of a head that is trained in full; ``start`` is its place in the flat vector.

    Attributes:
        name: end of its name in the model and in PEFT.
        initial: initial values.
    """

    name: str
    initial: Tensor
    start: int

    def view(self, flat: Tensor) -> Tensor:
        """Return this tensor's part of a flat vector."""
        return flat[self.start : self.start + self.initial.numel()].view(self.initial.shape)


class AdapterLayout:
    """Order and shapes of an adapter's tensors.

    Each layer has A (down), then B (up). Heads follow: one if each task has its own, several if several tasks
    share the matrices.

    Attributes:
        sites: names of the layers that have an adapter, in the model's order.
        heads: the tensors of each head; for a base model without own heads, one that is empty.
        shared_size: number of parameters before the first head.
        head_size: number of parameters of each head.
        size: number of all parameters.
    """

    def __init__(
        self, task: LoraTask, sites: Mapping[str, FusedLinear], head: Mapping[str, Tensor], heads: int = 1
    ) -> None:
        """Lay out the adapter of ``task``.

        Args:
            sites: layers that can have an adapter.
            head: initial values of each head, by the tensors' names.
            heads: number of heads.

        Raises:
            ValueError: a target module matches no layer.
        """
        named = () if task.is_all_linear else task.target_modules
        for target in named:
            if not any(is_target(name, target) for name in sites):
                known = ", ".join(sorted({name.rsplit(".", 1)[-1] for name in sites}))
                raise ValueError(f"{task.job_id}: no layer is called {target!r}; the base model has {known}")
        self.sites = tuple(
            name for name in sites if task.is_all_linear or any(is_target(name, t) for t in named)
        )
        self._factors: dict[str, tuple[Factor, Factor]] = {}
        size = 0
        for site in self.sites:
            out_features, in_features = sites[site].weight.shape
            down = Factor(site, "lora_A", task.rank, in_features, size)
            up = Factor(site, "lora_B", task.rank, out_features, size + task.rank * in_features)
            self._factors[site] = (down, up)
            size += task.rank * (in_features + out_features)
        self.shared_size = size
        self.head_size = sum(tensor.numel() for tensor in head.values())
        self.size = size + heads * self.head_size
        self.heads = tuple(_head(head, size + number * self.head_size) for number in range(heads))

    def __iter__(self) -> Iterator[Factor]:
        """Yield the low-rank matrices, in order."""
        for pair in self._factors.values():
            yield from pair

    def __contains__(self, site: str) -> bool:
        return site in self._factors

    @property
    def target_modules(self) -> list[str]:
        """Return the last parts of the layers' names, sorted: PEFT finds the layers by them."""
        return sorted({site.rsplit(".", 1)[-1] for site in self.sites})

    def factors(self, site: str) -> tuple[Factor, Factor]:
        """Return (down, up) of one layer."""
        return self._factors[site]

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """View a flat vector as named tensors, in PEFT's orientation; for a layout with one head."""
        (head,) = self.heads
        matrices = {factor.name: factor.peft_view(flat) for factor in self}
        return matrices | {tensor.name: tensor.view(flat) for tensor in head}

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Copy named tensors, in PEFT's orientation, into a new flat vector; the inverse of `split`.

        Raises:
            ValueError: names or shapes do not fit this layout.
        """
        flat = torch.zeros(self.size)
        expected = self.split(flat)
        refuse_unfit_tensors("base model and the task", expected, tensors)
        for name, matrix in expected.items():
            matrix.copy_(tensors[name])
        return flat

    def reset_heads(self, flat: Tensor) -> Tensor:
        """Return a copy of a flat vector with the initial values of the heads."""
        flat = flat.clone()
        for head in self.heads:
            for tensor in head:
                tensor.view(flat).copy_(tensor.initial)
        return flat


def _head(tensors: Mapping[str, Tensor], start: int) -> tuple[HeadTensor, ...]:
    parts = []
    for name, tensor in tensors.items():
        parts.append(HeadTensor(name, tensor, start))
        start += tensor.numel()
    return tuple(parts)


def initial_parameters(layout: AdapterLayout, seed: int) -> Tensor:
    """Draw LoRA's initial parameters: A Kaiming-uniform, B zero, so that a new adapter has no effect (as in
    PEFT). Heads are those of the base model."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "weights"))
    flat = torch.zeros(layout.size)
    for site in layout.sites:
        down, _ = layout.factors(site)
        bound = 1.0 / math.sqrt(down.features)
        down.view(flat).uniform_(-bound, bound, generator=generator)
    return layout.reset_heads(flat)


class Adapter:
    """An adapter's parameters on the device, as one vector with the matrices as views into it.

    With one vector, clipping and AdamW cost a kernel or two for a whole adapter. Gradients have a second
    vector of the same form.

    Attributes:
        vector: all parameters, float32; updated by the optimizer.
        gradient: their gradients, at the same places; one tensor for the life of the adapter.
        heads: the leaves of each head, by their names in the model.
    """

    def __init__(self, layout: AdapterLayout, parameters: Tensor, device: torch.device) -> None:
        self.vector = nn.Parameter(parameters.to(device, torch.float32, copy=True))
        self.gradient = torch.zeros_like(self.vector, requires_grad=False)
        self.vector.grad = self.gradient
        self._matrices = {}
        for site in layout.sites:
            down, up = layout.factors(site)
            self._matrices[site] = self._leaf(down), self._leaf(up)
        self.heads = tuple({tensor.name: self._leaf(tensor) for tensor in head} for head in layout.heads)

    def matrices(self, site: str) -> tuple[Tensor, Tensor]:
        """Return the leaves (down, up) of one layer."""
        return self._matrices[site]

    def _leaf(self, part: Factor | HeadTensor) -> Tensor:
        leaf = part.view(self.vector.detach()).requires_grad_()
        leaf.grad = part.view(self.gradient)
        return leaf


def refuse_unfit_tensors(owner: str, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Check that tensors have the expected names and shapes.

    Raises:
        ValueError: they do not fit their owner.
    """
    shapes = [{name: tensor.shape for name, tensor in tensors.items()} for tensors in (expected, given)]
    odd = sorted(name for name in {**expected, **given} if shapes[0].get(name) != shapes[1].get(name))
    if odd:
        raise ValueError(f"the tensors do not fit the {owner}: {', '.join(odd[:5])}")


def is_target(name: str, target: str) -> bool:
    """Return whether a target module matches a layer."""
    return name == target or name.endswith(f".{target}")


def adamw(
    moments: Mapping[nn.Parameter, tuple[Tensor, Tensor]],
    learning_rate: float,
    weight_decay: float,
    steps: int,
) -> torch.optim.AdamW:
    """Return AdamW on parameters, each with its two moments, after a number of updates."""
    optimizer = torch.optim.AdamW(list(moments), lr=learning_rate, weight_decay=weight_decay, fused=True)
    for parameter, (first, second) in moments.items():
        optimizer.state[parameter] = {
            "step": torch.tensor(float(steps), device=parameter.device),
            "exp_avg": first,
            "exp_avg_sq": second,
        }
    return optimizer


class TrainedAdapter:
    """One adapter and its optimizer. Gradients of all passes since `clear` add up.

    Attributes:
        task: task with its hyperparameters.
        layout: layout of the adapter.
    """

    def __init__(
        self, task: LoraTask, layout: AdapterLayout, state: AdapterState, device: torch.device
    ) -> None:
        """Copy a state to the device.

        Raises:
            ValueError: the state does not fit the layout.
        """
        sizes = {len(state.parameters), len(state.first_moment), len(state.second_moment)}
        if sizes != {layout.size}:
            raise ValueError(f"{task.job_id}: the state does not fit the base model and the task")
        self.task = task
        self.layout = layout
        self._adapter = Adapter(layout, state.parameters, device)
        moments = state.first_moment.to(device, copy=True), state.second_moment.to(device, copy=True)
        self._optimizer = adamw(
            {self._adapter.vector: moments}, task.learning_rate, task.weight_decay, state.optimizer_steps
        )

    @property
    def gradient(self) -> Tensor:
        """All gradients as one vector, in the layout's order; writing to it changes them."""
        return self._adapter.gradient

    @property
    def heads(self) -> Sequence[Mapping[str, Tensor]]:
        """Return the parameters of each head, by their names in the model."""
        return self._adapter.heads

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return parameters, first moment, second moment and count of updates, without copies: writing to
        them changes the state."""
        moments = self._optimizer.state[self._adapter.vector]
        return self._adapter.vector.detach(), moments["exp_avg"], moments["exp_avg_sq"], moments["step"]

    def site_adapter(self, site: str, rows: Rows, masks: Masks) -> SiteAdapter:
        """Return the adapter at one layer for the rows `rows` of a batch."""
        down, up = self._adapter.matrices(site)
        return SiteAdapter(down, up, self.task.scaling, self.task.dropout, masks, rows)

    def clear(self) -> None:
        """Clear all gradients."""
        self._adapter.gradient.zero_()

    def update(self) -> float:
        """Clip the gradient, and update.

        Returns:
            the gradient's L2 norm before clipping; if it is not finite, there was no update.
        """
        norm = float(torch.nn.utils.get_total_norm([self.gradient]))
        self.update_as_part(norm)
        return norm

    def update_as_part(self, norm: float) -> None:
        """Clip the gradient as part of one whose L2 norm is `norm`, and update, unless the norm is not
        finite."""
        if not math.isfinite(norm) or not self.layout.size:
            return
        vector = self._adapter.vector
        whole = torch.tensor(norm, dtype=torch.float32, device=vector.device)
        clip_grads_with_norm_([vector], self.task.max_gradient_norm, whole)
        self._optimizer.step()

    def state(self) -> AdapterState:
        """Copy the state to host memory, pinned if the device is a GPU, so that it returns fast."""
        parameters, first_moment, second_moment, steps = self.tensors
        return AdapterState(
            parameters=_to_host(parameters),
            first_moment=_to_host(first_moment),
            second_moment=_to_host(second_moment),
            optimizer_steps=int(steps),
        )


def _to_host(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return host.copy_(tensor)
