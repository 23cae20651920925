"""A pass of the base model over a packed batch, with adapters on the rows of their tasks."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol, cast

import torch
from torch import Tensor

from executors.lora.adapter import AdapterLayout
from executors.lora.base_model import SharedBase
from executors.lora.batch import PackedBatch
from executors.lora.fused_linear import SiteAdapter, SiteBatch
from executors.lora.segment_products import Rows, SegmentProducts, choose_products, is_aligned_for_grouping


class Adapted(Protocol):
    """A task with an adapter."""

    @property
    def layout(self) -> AdapterLayout:
        """Where its adapter sits."""

    def site_adapter(self, site: str, rows: Rows) -> SiteAdapter:
        """The adapter at one layer for the rows `rows` of a batch."""


@contextmanager
def adapters_placed(base: SharedBase, tasks: Sequence[Adapted], batch: PackedBatch) -> Iterator[None]:
    """Tell each layer, for the length of the block, which adapters apply to which rows.

    Args:
        tasks: whose rows the batch has, in the order of `batch.task_rows`.
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
        yield
    finally:
        for layer in base.sites.values():
            layer.batch = None


def loss_logits(base: SharedBase, batch: PackedBatch) -> Tensor:
    """The logits of the rows that bear loss, ``[N, vocabulary]``."""
    logits = base.model(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        sequence_runs=batch.sequence_runs,
        logits_to_keep=batch.loss_rows,
        use_cache=False,
    ).logits[0]
    return cast(Tensor, logits)


def precision(device: torch.device) -> AbstractContextManager[None]:
    """What passes are computed in: bfloat16 where it is fast, and else the model's own type."""
    if device.type == "cuda":
        return torch.autocast("cuda", torch.bfloat16)
    return nullcontext()
