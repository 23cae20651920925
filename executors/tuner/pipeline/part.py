"""One stage's part of a task: its adapter matrices and AdamW's moments, on the stage's device."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_

from executors.lora.adapter import Adapter, AdapterLayout
from executors.lora.fused_linear import SiteAdapter, SiteBatch
from executors.lora.randomness import StreamedMasks, derive_seed
from executors.lora.segment_products import SeparateProducts
from executors.lora.task import LoraTask, TaskState
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
    """

    def __init__(self, layout: StageLayout, piece: TaskState, device: torch.device) -> None:
        """Bring a piece of a state to the device."""
        self.layout = layout
        self._task = layout.task
        self._device = device
        self._adapter = Adapter(layout.layout, piece.parameters, device)
        self._optimizer = torch.optim.AdamW(
            [self._adapter.vector],
            lr=self._task.learning_rate,
            weight_decay=self._task.weight_decay,
            fused=True,
        )
        self._optimizer.state[self._adapter.vector] = {
            "step": torch.tensor(float(piece.optimizer_steps), device=device),
            "exp_avg": piece.first_moment.to(device, copy=True),
            "exp_avg_sq": piece.second_moment.to(device, copy=True),
        }
        self._masks: dict[str, torch.Generator] = {}
        if self._task.dropout:
            self._masks = {site: torch.Generator(device) for site in layout.layout.sites}

    def begin_step(self) -> None:
        """Clear the gradient."""
        self._adapter.gradient.zero_()

    def site_batches(self, rows: int, masks: tuple[int, int] | None) -> dict[str, SiteBatch]:
        """What each of the stage's layers adds to a micro-batch of so many rows.

        Args:
            rows: tokens of the micro-batch.
            masks: (step, micro-batch), which decide the dropout masks; None for no dropout. A stage draws
                for its own layers only, so the masks do not depend on where the model is cut. They are not
                those of the engine, which draws for all layers from one generator.
        """
        batches = {}
        for site in self.layout.layout.sites:
            down, up = self._adapter.matrices(site)
            dropout = 0.0 if masks is None else self._task.dropout
            generator = self._masks.get(site) or _UNUSED
            if dropout and masks is not None:
                generator.manual_seed(derive_seed(self._task.seed, "dropout", *masks, site))
            adapter = SiteAdapter(down, up, self._task.scaling, dropout, StreamedMasks(generator), (0, rows))
            products = SeparateProducts([adapter.rows], [adapter.gain])
            batches[site] = SiteBatch(rows, (adapter,), products)
        return batches

    def squared_norms(self) -> list[float]:
        """Of the gradient, for each decoder layer: added up in float64, so that the norm of the whole does
        not depend on where the model is cut."""
        pieces = [self._adapter.gradient[start:stop] for start, stop in self.layout.layer_pieces]
        if not pieces:
            return []
        sums: list[float] = torch.stack([piece.double().square().sum() for piece in pieces]).tolist()
        return sums

    def update(self, gradient_norm: float) -> None:
        """Clip by the norm over all stages and take AdamW's step; one that is not finite updates nothing."""
        if not math.isfinite(gradient_norm) or not self.layout.size:
            return
        norm = torch.tensor(gradient_norm, dtype=torch.float32, device=self._device)
        clip_grads_with_norm_([self._adapter.vector], self._task.max_gradient_norm, norm)
        self._optimizer.step()

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Parameters and both moments, on the device, as they are."""
        moments = self._optimizer.state[self._adapter.vector]
        return self._adapter.vector.detach(), moments["exp_avg"], moments["exp_avg_sq"]

    def to_host(self) -> Tensor:
        """Copy parameters and both moments to host memory, ``[3, size]``, pinned if the device is a GPU."""
        host = torch.empty(3, self.layout.size, pin_memory=self._device.type == "cuda")
        for row, tensor in zip(host, self.tensors(), strict=True):
            row.copy_(tensor, non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return host

    def gradient(self) -> Tensor:
        """The gradient of the last step, clipped as it was used: this stage's piece, on the device."""
        return self._adapter.gradient

    def serve(self, stream: torch.cuda.Stream) -> None:
        """Say that another stream will use this part than the one on which it was brought here."""
        for tensor in (*self.tensors(), self._adapter.gradient):
            tensor.record_stream(stream)


_UNUSED = torch.Generator()
"""Stands where no mask is drawn."""
