"""Routing of a batch by all ranks together: its balance loss, its complexity, and its reports."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executors.gang.rank import GangRank
from executors.moe.block import LayerPass
from executors.moe.runner import MoeOrder
from schemas.experts.reports import ELEMENTS_PER_LAYER, MAX_ELEMENTS, ExpertsRouted, LayerRouting

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class BatchRouting:
    """Counts of a batch, for one rank's share or for all: those of all ranks are the sum of their `vector`s.

    Attributes:
        loss: sum of the losses of all predictions.
        pairs: `(layers, experts)`, tokens of each expert; one with two experts counts for both.
        first_of_singles: `(layers, experts)`, tokens with this expert only.
        first_of_all: `(layers, experts)`, tokens with this expert as the first.
        probabilities: `(layers, experts)`, sum of the tokens' probabilities of the softmax over all experts.
        ratios: `(layers, batch)`, ratio of each sample's tokens with two experts (Eq. 5.5).
        lengths: `(batch,)`, tokens of each sample.
    """

    loss: float
    pairs: NDArray[np.float64]
    first_of_singles: NDArray[np.float64]
    first_of_all: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    ratios: NDArray[np.float64]
    lengths: NDArray[np.float64]

    @classmethod
    def nothing(cls, layers: int, experts: int, batch: int) -> "BatchRouting":
        """Return the counts of a rank without samples."""
        pairs, singles, firsts, probabilities = (np.zeros((layers, experts)) for _ in range(4))
        return cls(0.0, pairs, singles, firsts, probabilities, np.zeros((layers, batch)), np.zeros(batch))

    @classmethod
    def of_share(
        cls, passes: Sequence[LayerPass], experts: int, batch: int, places: range, loss: float
    ) -> "BatchRouting":
        """Return the counts of one rank.

        Args:
            passes: passes of each layer, over the samples of the share.
            places: places of these samples in the batch.
        """
        routing = cls.nothing(len(passes), experts, batch)
        own = slice(places.start, places.stop)
        for layer, each in enumerate(passes):
            first, is_single = each.routing.first_expert, ~each.routing.is_double
            routing.pairs[layer] = each.routing.counts.cpu().numpy()
            routing.first_of_all[layer] = _counted(first, experts)
            routing.first_of_singles[layer] = _counted(first[is_single], experts)
            routing.probabilities[layer] = (
                each.routing.probabilities.detach().double().sum(dim=0).cpu().numpy()
            )
            routing.ratios[layer, own] = each.double_ratio_of_sequences.cpu().numpy()
        routing.lengths[own] = passes[0].tokens_of_sequences.cpu().numpy()
        return replace(routing, loss=loss)

    @property
    def vector(self) -> Tensor:
        """Return all counts, float64 on the CPU, to be added up over ranks."""
        parts = [np.array([self.loss]), *(part.ravel() for part in self._parts)]
        return torch.from_numpy(np.concatenate(parts))

    def summed(self, vector: Tensor) -> "BatchRouting":
        """Return the counts of all ranks, from the sum of their vectors, which have the form of this
        one's."""
        loss, *rest = np.split(
            vector.numpy(), np.cumsum([1, *(part.size for part in self._parts)])[:-1].tolist()
        )
        parts = (part.reshape(like.shape) for part, like in zip(rest, self._parts, strict=True))
        return BatchRouting(float(loss[0]), *parts)

    @property
    def doubles(self) -> NDArray[np.float64]:
        """Return the `(layers,)` tokens with two experts."""
        doubles: NDArray[np.float64] = self.first_of_all.sum(1) - self.first_of_singles.sum(1)
        return doubles

    def balance_loss(self, passes: Sequence[LayerPass]) -> Tensor:
        """Return a rank's part of the sum of the layers' balance losses over the batch of all ranks: the
        parts of all ranks add up to `executors.moe.block.auxiliary_loss` of the batch in one process.

        Eq. 5.4 has E sum_e f_e p_e, where fractions f bear no gradient, and means p are over all tokens.

        Args:
            passes: passes of this rank's share; these counts are those of all.
        """
        parts = []
        for layer, each in enumerate(passes):
            probabilities = each.routing.probabilities
            fractions = torch.from_numpy(self._fractions(layer)).to(probabilities)
            means = probabilities.sum(dim=0) / max(self.first_of_all[layer].sum(), 1.0)
            parts.append(len(fractions) * (fractions * means).sum())
        return torch.stack(parts).sum()

    @property
    def mean_balance_loss(self) -> float:
        """Return the mean of the layers' balance losses (Eq. 5.4) of the batch; 1 is an even load."""
        losses = [
            len(sums) * float(self._fractions(layer) @ sums) / max(float(self.first_of_all[layer].sum()), 1.0)
            for layer, sums in enumerate(self.probabilities)
        ]
        return sum(losses) / len(losses)

    def _fractions(self, layer: int) -> NDArray[np.float64]:
        """Return the fractions f of Eq. 5.4, `(experts,)`; see `balance_loss` of executors.moe.gating."""
        singles = self.first_of_singles[layer]
        counted = singles if singles.any() else self.first_of_all[layer]
        fractions: NDArray[np.float64] = counted / max(counted.sum(), 1.0)
        return fractions

    @property
    def _parts(self) -> tuple[NDArray[np.float64], ...]:
        counts = (self.pairs, self.first_of_singles, self.first_of_all, self.probabilities)
        return (*counts, self.ratios, self.lengths)


class RoutedBatches:
    """Routing since the last report."""

    def __init__(self, layers: int, experts: int) -> None:
        self._pairs = np.zeros((layers, experts), np.int64)
        self._doubles = np.zeros(layers, np.int64)
        self.batches = 0

    def add(self, routing: BatchRouting) -> None:
        self._pairs += routing.pairs.astype(np.int64)
        self._doubles += routing.doubles.astype(np.int64)
        self.batches += 1

    def drain(self) -> tuple[LayerRouting, ...]:
        """Remove and return the counts by layer."""
        drained = tuple(
            LayerRouting(tokens=tuple(tokens), doubles=doubles)
            for tokens, doubles in zip(self._pairs.tolist(), self._doubles.tolist(), strict=True)
        )
        self._pairs[:], self._doubles[:], self.batches = 0, 0, 0
        return drained


def _counted(experts_of_tokens: Tensor, experts: int) -> NDArray[np.float64]:
    counted: NDArray[np.float64] = (
        torch.bincount(experts_of_tokens, minlength=experts).cpu().numpy().astype(np.float64)
    )
    return counted


class RoutingReporter:
    """Adds up the routing of batches, and reports it. Only rank 0 reports."""

    def __init__(self, rank: GangRank[MoeOrder], layers: int, experts: int) -> None:
        """Start without batches.

        Args:
            layers: number of layers with experts.
            experts: number of experts of each layer.
        """
        self._rank = rank
        self._routed = RoutedBatches(layers, experts)
        self._fits = layers * (experts + ELEMENTS_PER_LAYER) <= MAX_ELEMENTS
        if rank.leads and not self._fits:
            _log.warning(
                "routing is not reported job=%s layers=%d experts=%d: no report has room for so many",
                *(rank.order.job_id, layers, experts),
            )
        self._reported_s = time.monotonic()

    def add(self, routing: BatchRouting, saved_samples: int) -> None:
        """Add a batch, and report if `report_interval_s` has passed.

        Args:
            saved_samples: samples of the newest checkpoint.
        """
        self._routed.add(routing)
        if time.monotonic() - self._reported_s >= self._rank.order.report_interval_s:
            self.flush(saved_samples)

    def flush(self, saved_samples: int) -> None:
        now_s, batches = time.monotonic(), self._routed.batches
        if not (self._rank.leads and self._fits and batches):
            return
        layers, interval_s = self._routed.drain(), now_s - self._reported_s
        self._rank.report(ExpertsRouted, saved_samples, layers=layers, batches=batches, interval_s=interval_s)
        self._reported_s = now_s
