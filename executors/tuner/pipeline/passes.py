"""One stage's forward and backward of a micro-batch."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from executors.lora.batch import PackedBatch
from executors.lora.fused_linear import SiteBatch
from executors.tuner.pipeline.structure import Structure


class StagePasses:
    """Runs micro-batches through the layers of one stage.

    Attributes:
        is_first: whether it takes tokens, and not another stage's hidden states.
        is_last: whether it gives losses, and not hidden states.
    """

    def __init__(self, structure: Structure, layers: range, device: torch.device) -> None:
        self._structure = structure
        self._layers = structure.layers[layers.start : layers.stop]
        self._device = device
        self.is_first = layers.start == 0
        self.is_last = layers.stop == len(structure.layers)

    def forward(
        self, batch: PackedBatch, received: Tensor | None, adapters: Mapping[str, SiteBatch]
    ) -> Tensor:
        """Run a micro-batch.

        Args:
            batch: the micro-batch, of T tokens.
            received: hidden states of the stage before, ``[1, T, features]``; None for the first stage.
            adapters: what the stage's layers add.

        Returns:
            hidden states like ``received``; of the last stage the summed loss of the predicted tokens.
        """
        model, family = self._structure.base.model, self._structure.family
        sites = self._structure.base.sites
        for site, site_batch in adapters.items():
            sites[site].batch = site_batch
        try:
            with self._precision():
                hidden = family.embed(model, batch) if received is None else received
                hidden = family.run(model, self._layers, hidden, batch)
                if not self.is_last:
                    return hidden.to(self._structure.dtype)
                logits = family.logits(model, hidden, batch.loss_rows)
            return cross_entropy(logits.float(), batch.labels, reduction="none").sum()
        finally:
            for site in adapters:
                sites[site].batch = None

    @staticmethod
    def backward(output: Tensor, gradient: Tensor | None, received: Tensor | None) -> Tensor | None:
        """Run a micro-batch back.

        Args:
            output: what the stage gave, or a multiple of it.
            gradient: of it; None for a loss.
            received: what the stage took.

        Returns:
            the gradient of ``received``; None for the first stage.
        """
        # A first stage without an adapter gives states that depend on nothing that is trained.
        if output.requires_grad:
            output.backward(gradient)
        return None if received is None else received.grad

    def _precision(self) -> AbstractContextManager[object]:
        if self._device.type == "cuda":
            return torch.autocast("cuda", torch.bfloat16)
        return nullcontext()
