"""One stage's part of a task: its adapter matrices and AdamW's moments, on the stage's device."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from executors.lora.adapter import AdapterLayout
from executors.lora.task import LoraTask, TaskState
from executors.lora.trained_adapter import TrainedAdapter
from executors.tuner.pipeline.structure import Structure


class StageLayout:
    """Which piece of a task's flat vectors belongs to a stage.

    An adapter's vector goes through the model layer by layer, so a stage's part of it is one piece.

    Attributes:
        task: whose adapter it is.
        start: where the piece begins in the whole vector.
        layout: of the piece alone.
        layer_pieces: (start, stop) of each decoder layer within the piece.
    """

    def __init__(self, task: LoraTask, structure: Structure, layers: range) -> None:
        """Lay out the part of a stage.

        Raises:
            ValueError: a target module matches no layer of the whole model.
        """
        base = structure.base
        whole = AdapterLayout(task, base.sites)
        inside = set(structure.sites_of(layers))
        sites = tuple(site for site in whole.sites if site in inside)
        own = {site: base.sites[site] for site in sites}
        self.task = task
        self.start = whole.factors(sites[0])[0].start if sites else 0
        # Named in full, these layers are the only ones that match.
        self.layout = AdapterLayout(task.model_copy(update={"target_modules": sites}), own)
        self.layer_pieces = tuple(
            piece for layer in layers if (piece := self._piece(structure.sites_of(range(layer, layer + 1))))
        )

    @property
    def size(self) -> int:
        """Elements of the piece."""
        return self.layout.size

    def cut(self, state: TaskState) -> TaskState:
        """The state with this stage's pieces for its vectors, which share memory with the whole ones."""
        piece = slice(self.start, self.start + self.size)
        return replace(
            state,
            parameters=state.parameters[piece],
            first_moment=state.first_moment[piece],
            second_moment=state.second_moment[piece],
        )

    def _piece(self, sites: Sequence[str]) -> tuple[int, int] | None:
        pairs = [self.layout.factors(site) for site in sites if site in self.layout]
        if not pairs:
            return None
        last = pairs[-1][1]
        return pairs[0][0].start, last.start + last.rank * last.features


class TaskPart:
    """A stage's adapter matrices while they are trained. What it computes is what the engine would.

    Attributes:
        layout: which piece of the task it is.
        adapter: the piece on the device, with its optimizer.
    """

    def __init__(self, layout: StageLayout, piece: TaskState, device: torch.device) -> None:
        """Bring a piece of a state to the device."""
        self.layout = layout
        self.adapter = TrainedAdapter(layout.task, layout.layout, piece, device)

    def squared_norms(self) -> list[float]:
        """Of the gradient, for each decoder layer: added up in float64, so that the norm of the whole does
        not depend on where the model is cut."""
        pieces = [self.adapter.gradient[start:stop] for start, stop in self.layout.layer_pieces]
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
        """Say that another stream will use this part than the one on which it was brought here."""
        for tensor in (*self.adapter.tensors, self.adapter.gradient):
            tensor.record_stream(stream)
