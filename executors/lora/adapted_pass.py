"""A pass of the base model over a packed batch, with adapters on the rows of their tasks."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from executors.lora.adapter import AdapterLayout
from executors.lora.batch import PackedBatch
from executors.lora.fused_layers import HeadUse, SiteAdapter, SiteBatch
from executors.lora.segment_products import Rows, SegmentProducts, choose_products, is_aligned_for_grouping
from executors.lora.shared_base import SharedBase


class Adapted(Protocol):
    """A task with an adapter."""

    @property
    def layout(self) -> AdapterLayout:
        """Layers of its adapter."""

    def site_adapter(self, site: str, rows: Rows) -> SiteAdapter:
        """Return the adapter at one layer for the rows `rows` of a batch."""

    def head_uses(self, loss_rows: int) -> Sequence[HeadUse]:
        """Return its heads for those of its rows that bear loss, in order."""


@contextmanager
def adapters_placed(base: SharedBase, tasks: Sequence[Adapted], batch: PackedBatch) -> Iterator[None]:
    """Set the adapters and their rows in each layer and head, within the block.

    Args:
        tasks: tasks of the batch's rows, in the order of `batch.task_rows`.
    """
    chosen: dict[tuple[tuple[int, ...], bool], SegmentProducts] = {}
    try:
        for site, layer in base.sites.items():
            members = tuple(index for index, task in enumerate(tasks) if site in task.layout)
            if not members:
                continue
            adapters = tuple(tasks[index].site_adapter(site, batch.task_rows[index]) for index in members)
            in_features, out_features = layer.weight.shape
            aligned = is_aligned_for_grouping(in_features, out_features, layer.weight.dtype)
            if (members, aligned) not in chosen:
                chosen[members, aligned] = choose_products(
                    [adapter.rows for adapter in adapters],
                    [adapter.rank for adapter in adapters],
                    [adapter.gain for adapter in adapters],
                    device=batch.input_ids.device,
                    grouped=aligned,
                )
            layer.batch = SiteBatch(batch.input_ids.shape[1], adapters, chosen[members, aligned])
        for head in base.heads:
            head.uses = [
                use
                for task, loss_rows in zip(tasks, batch.loss_counts, strict=True)
                for use in task.head_uses(loss_rows)
            ]
        yield
    finally:
        for head in base.heads:
            head.uses = ()
        for layer in base.sites.values():
            layer.batch = None


def loss_logits(base: SharedBase, batch: PackedBatch) -> Tensor:
    """Return the logits of the rows that bear loss, ``[N, classes]``; of a language model, the classes are
    its vocabulary."""
    return base.objective.loss_logits(base.model, batch)


def precision(device: torch.device) -> AbstractContextManager[None]:
    """Return the precision of passes: bfloat16 where it is fast, and else the model's own type."""
    if device.type == "cuda":
        return torch.autocast("cuda", torch.bfloat16)
    return nullcontext()
