"""An adapter in training: its parameters on a device, with AdamW's moments."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_

from executors.lora.adapter import Adapter, AdapterLayout
from executors.lora.fused_linear import SiteAdapter
from executors.lora.randomness import Masks
from executors.lora.segment_products import Rows
from executors.lora.task import AdapterState, LoraTask


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
        self._optimizer = torch.optim.AdamW(
            [self._adapter.vector], lr=task.learning_rate, weight_decay=task.weight_decay, fused=True
        )
        self._optimizer.state[self._adapter.vector] = {
            "step": torch.tensor(float(state.optimizer_steps), device=device),
            "exp_avg": state.first_moment.to(device, copy=True),
            "exp_avg_sq": state.second_moment.to(device, copy=True),
        }

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
