"""A classifier's head, of which each task has its own, trained in full."""

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

HeadUse = tuple[Mapping[str, Tensor], int]
"""A head's parameters, by their names in the model, and its number of rows."""


class FusedHead(nn.Module):
    """Replaces the head of the base model: each task's rows use the task's own head.

    Attributes:
        name: dotted name in the model.
        base_head: initial head of each task.
        uses: heads of the current batch, in the order of its rows; empty for the base head.
    """

    def __init__(self, name: str, base_head: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.base_head = base_head
        self.uses: Sequence[HeadUse] = ()

    @classmethod
    def put_into(cls, model: nn.Module, name: str) -> Self:
        """Replace the head with this name in a model."""
        head = cls(name, model.get_submodule(name))
        model.set_submodule(name, head)
        return head

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Return the initial parameters of each task's head, by their names in the model."""
        return {f"{self.name}.{name}": tensor for name, tensor in self.base_head.named_parameters()}

    def forward(self, inputs: Tensor) -> Tensor:
        """Map pooled outputs ``[N, ...]`` to logits ``[N, classes]``."""
        if not self.uses:
            outputs: Tensor = self.base_head(inputs)
            return outputs
        parts = inputs.split([rows for _, rows in self.uses])
        return torch.cat([self._own(head, part) for (head, _), part in zip(self.uses, parts, strict=True)])

    def _own(self, head: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        parameters = {name.removeprefix(f"{self.name}."): tensor for name, tensor in head.items()}
        outputs: Tensor = functional_call(self.base_head, parameters, (inputs,))
        return outputs
