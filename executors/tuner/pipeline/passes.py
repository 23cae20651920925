"""Forward and backward pass of a micro-batch on one stage."""

import torch
from torch import Tensor

from executors.lora.adapted_pass import Adapted, adapters_placed, precision
from executors.lora.batch import PackedBatch
from executors.tuner.pipeline.structure import Structure


class StagePasses:
    """Runs micro-batches through the layers of one stage.

    Attributes:
        is_first: whether the input is tokens, and not another stage's hidden states.
        is_last: whether the output is logits, and not hidden states.
    """

    def __init__(self, structure: Structure, layers: range, device: torch.device) -> None:
        self._structure = structure
        self._layers = structure.layers[layers.start : layers.stop]
        self._device = device
        self.is_first = layers.start == 0
        self.is_last = layers.stop == len(structure.layers)

    def forward(self, batch: PackedBatch, received: Tensor | None, adapter: Adapted) -> Tensor:
        """Run a micro-batch.

        Args:
            batch: the micro-batch, of T tokens.
            received: hidden states of the stage before, ``[1, T, features]``; None for the first stage.
            adapter: adapter of the stage's layers.

        Returns:
            hidden states like ``received``; of the last stage float32 logits of the rows that bear loss.
        """
        model, family = self._structure.base.model, self._structure.family
        with adapters_placed(self._structure.base, [adapter], batch), precision(self._device):
            hidden = family.embed(model, batch) if received is None else received
            hidden = family.run(model, self._layers, hidden, batch)
            if not self.is_last:
                return hidden.to(self._structure.dtype)
            return self._structure.logits(hidden, batch.loss_rows).float()

    def backward(
        self,
        output: Tensor,
        gradient: Tensor | None,
        batch: PackedBatch,
        received: Tensor | None,
        adapter: Adapted,
    ) -> Tensor | None:
        """Run the backward pass of a micro-batch.

        Args:
            output: output of the stage's forward pass, or, of the last stage, its loss.
            gradient: gradient of the output; None for a loss.
            batch: the micro-batch.
            received: input of the stage.
            adapter: adapter of its layers, with which activations that were not kept are computed again.

        Returns:
            the gradient of ``received``; None for the first stage.
        """
        # Without an adapter, the output of a first stage depends on no trained parameter.
        if output.requires_grad:
            with adapters_placed(self._structure.base, [adapter], batch):
                output.backward(gradient)
        return None if received is None else received.grad
