"""One stage's part of a task: its adapter matrices with AdamW's moments, and its passes."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from executors.lora.adapted_pass import Adapted, adapters_placed, precision
from executors.lora.adapter import AdapterLayout, TrainedAdapter
from executors.lora.batch import PackedBatch
from executors.lora.lora_task import LoraTask, TaskState
from executors.tuner.pipeline.structure import Structure


class StageLayout:
    """Piece of a task's flat vectors that belongs to a stage.

    An adapter's vector is ordered by layer, with the head last, so a stage's part is one piece.

    Attributes:
        task: task of the adapter.
        start: offset of the piece in the whole vector.
        layout: layout of the piece alone.
        norm_pieces: (start, stop) of each decoder layer within the piece, and of the head: the units of
            gradient norms.
    """

    def __init__(self, task: LoraTask, structure: Structure, layers: range) -> None:
        """Lay out the part of a stage.

        Raises:
            ValueError: a target module matches no layer of the whole model.
        """
        base = structure.base
        whole = base.layout(task)
        inside = set(structure.sites_of(layers))
        sites = tuple(site for site in whole.sites if site in inside)
        own = {site: base.sites[site] for site in sites}
        self.task = task
        self.start = whole.factors(sites[0])[0].start if sites else whole.shared_size
        head = base.head_tensors if layers.stop == len(structure.layers) else {}
        # The full names match only these layers.
        self.layout = AdapterLayout(task.model_copy(update={"target_modules": sites}), own, head)
        each_layer = (structure.sites_of(range(layer, layer + 1)) for layer in layers)
        pieces = [self._piece(names) for names in each_layer]
        pieces.append((self.layout.shared_size, self.layout.size))
        self.norm_pieces = tuple((start, stop) for start, stop in pieces if start < stop)

    @property
    def size(self) -> int:
        return self.layout.size

    def cut(self, state: TaskState) -> TaskState:
        """Return the state with this stage's pieces as its vectors, which share memory with the whole
        ones."""
        piece = slice(self.start, self.start + self.size)
        return replace(
            state,
            parameters=state.parameters[piece],
            first_moment=state.first_moment[piece],
            second_moment=state.second_moment[piece],
        )

    def _piece(self, sites: Sequence[str]) -> tuple[int, int]:
        pairs = [self.layout.factors(site) for site in sites if site in self.layout]
        if not pairs:
            return 0, 0
        last = pairs[-1][1]
        return pairs[0][0].start, last.start + last.rank * last.features


class StagePart:
    """A stage's adapter matrices in training. Its results are those of the engine.

    Attributes:
        layout: piece of the task.
        adapter: the piece on the device, with its optimizer.
    """

    def __init__(self, layout: StageLayout, piece: TaskState, device: torch.device) -> None:
        """Copy a piece of a state to the device."""
        self.layout = layout
        self.adapter = TrainedAdapter(layout.task, layout.layout, piece, device)

    def squared_norms(self) -> list[float]:
        """Return the squared norms of the gradient by decoder layer, then of the head, summed in float64: the
        norm of the whole does not depend on the partition of the model."""
        pieces = [self.adapter.gradient[start:stop] for start, stop in self.layout.norm_pieces]
        if not pieces:
            return []
        sums: list[float] = torch.stack([piece.double().square().sum() for piece in pieces]).tolist()
        return sums

    def to_host(self) -> Tensor:
        """Copy parameters and both moments to host memory, ``[3, size]``, pinned if the device is a GPU."""
        tensors = self.adapter.tensors[:3]
        host = torch.empty(3, self.layout.size, pin_memory=tensors[0].is_cuda)
        for row, tensor in zip(host, tensors, strict=True):
            row.copy_(tensor, non_blocking=True)
        if tensors[0].is_cuda:
            torch.cuda.current_stream(tensors[0].device).synchronize()
        return host

    def serve(self, stream: torch.cuda.Stream) -> None:
        """Mark this part as used by another stream than the one that copied it to the device."""
        for tensor in (*self.adapter.tensors, self.adapter.gradient):
            tensor.record_stream(stream)


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
