"""Samples of a step, the same for any number of ranks; their order by complexity (thesis, section 5.3.2).

A sample's complexity vector has, for each layer, the ratio of its tokens that needed two experts (Eq. 5.5).
Training itself collects the vectors, without an extra pass; before each epoch the samples are sorted by the
cosine similarity of their vectors to the simplest sample's, and cut into batches of similar complexity.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executors.gang.batches import global_batch
from schemas.experts.workload import MoeTrainWorkload

_SIMILARITY_DECIMALS = 9


def order_by_complexity(vectors: NDArray[np.float64], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Order samples from the most similar to the simplest one, which has the fewest tokens with two experts.

    A vector of zeros has no direction, and so no cosine. Samples with such vectors had no token that needed
    two experts. They come first. The others are compared with the simplest sample that has a direction.
    Samples of equal similarity, as all of a single layer are, follow by their mean ratio, since the cosine
    does not distinguish [0.1, 0.1] and [0.9, 0.9]; samples that are still equal stay in the given order.

    Args:
        vectors: ``(samples, layers)``, ratios in [0, 1].
        tokens: ``(samples,)``, length of each sample.

    Returns:
        ``(samples,)``, numbers of the samples in the order of training.
    """
    lengths = np.linalg.norm(vectors, axis=1)
    directed = np.flatnonzero(lengths)
    similarity = np.full(len(vectors), np.inf)
    if len(directed):
        doubles = vectors[directed].sum(axis=1) * tokens[directed]
        simplest = directed[np.argmin(doubles)]
        cosines = vectors[directed] @ vectors[simplest] / (lengths[directed] * lengths[simplest])
        similarity[directed] = cosines.round(_SIMILARITY_DECIMALS)  # rounding must not break ties
    return np.lexsort((vectors.mean(axis=1), -similarity)).astype(np.int64)


class Curriculum:
    """Recorded complexity of a dataset's samples, and the batches that follow from it.

    Attributes:
        vectors: ``(samples, layers)`` float64, complexity as last recorded; NaN before that. With ``tokens``
            it is the whole state.
        tokens: ``(samples,)`` int64, the samples' lengths as last recorded.
    """

    def __init__(self, samples: int, layers: int, seed: int) -> None:
        """Start without records.

        Raises:
            ValueError: there is no sample or no layer.
        """
        if samples < 1 or layers < 1:
            raise ValueError(f"a curriculum of {samples} samples and {layers} layers; it needs one of each")
        self._seed = seed
        self.vectors = np.full((samples, layers), np.nan)
        self.tokens = np.zeros(samples, dtype=np.int64)

    def record(
        self, samples: NDArray[np.int64], ratios: NDArray[np.float64], tokens: NDArray[np.int64]
    ) -> None:
        """Record the routing of a batch.

        Args:
            samples: ``(batch,)``, the samples' numbers.
            ratios: ``(layers, batch)``, each layer's ``double_ratio_of_sequences``.
            tokens: ``(batch,)``, the sequences' lengths.

        Raises:
            ValueError: the shapes do not fit, or a ratio is outside [0, 1].
        """
        expected = (self.vectors.shape[1], len(samples))
        if ratios.shape != expected or tokens.shape != samples.shape:
            raise ValueError(f"ratios of shape {ratios.shape}, tokens of {tokens.shape}; expected {expected}")
        if not ((ratios >= 0) & (ratios <= 1)).all():
            raise ValueError("a ratio of tokens with two experts is outside [0, 1]")
        self.vectors[samples] = ratios.T
        self.tokens[samples] = tokens

    def batches(self, epoch: int, batch_size: int) -> list[NDArray[np.int64]]:
        """Cut the samples into the batches of an epoch, the simplest first; the last may be smaller.

        Samples of unknown complexity, which are all in the first epoch, come last, in an order that depends
        only on the seed and the epoch.

        Raises:
            ValueError: the batch size is below 1.
        """
        if batch_size < 1:
            raise ValueError(f"batch size {batch_size} is below 1")
        shuffled = np.random.default_rng((self._seed, epoch)).permutation(len(self.vectors))
        is_known = ~np.isnan(self.vectors).any(axis=1)
        known = shuffled[is_known[shuffled]]
        ordered = known[order_by_complexity(self.vectors[known], self.tokens[known])]
        order = np.concatenate([ordered, shuffled[~is_known[shuffled]]])
        return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


class SampleOrder(ABC):
    """The order of a dataset's samples in training. By default, it depends on the samples done alone."""

    @abstractmethod
    def batch(self, samples_done: int) -> Sequence[int]:
        """Return the record numbers of the step after some samples; empty when all work is done."""

    def record(self, samples: Sequence[int], ratios: NDArray[np.float64], tokens: NDArray[np.int64]) -> None:  # noqa: B027
        """Record the routing of a batch: see `Curriculum.record`."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors for a checkpoint."""
        return {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Continue from the tensors of a checkpoint."""


def order_of(workload: MoeTrainWorkload, records: int, layers: int) -> SampleOrder:
    """Return the order that a job requests."""
    if workload.hyperparameters.curriculum:
        return ByComplexity(workload, records, layers)
    return Shuffled(workload, records)


class Shuffled(SampleOrder):
    """A new order for each epoch, which depends on the seed; batches continue from one epoch to the next."""

    def __init__(self, workload: MoeTrainWorkload, records: int) -> None:
        self._workload = workload
        self._records = records

    def batch(self, samples_done: int) -> Sequence[int]:
        hyperparameters, work = self._workload.hyperparameters, self._workload.work_samples
        return global_batch(
            self._records, hyperparameters.seed, samples_done, hyperparameters.global_batch_size, work
        )


class ByComplexity(SampleOrder):
    """Samples in the order of their complexity, sorted again before each epoch; batches end with it."""

    def __init__(self, workload: MoeTrainWorkload, records: int, layers: int) -> None:
        hyperparameters = workload.hyperparameters
        self._curriculum = Curriculum(records, layers, hyperparameters.seed)
        self._work_samples = workload.work_samples
        self._batch_size = hyperparameters.global_batch_size
        self._epoch = -1
        self._order = np.zeros(records, np.int64)

    def batch(self, samples_done: int) -> Sequence[int]:
        """See `SampleOrder`. Must be called for each batch in order: records count from the next epoch on."""
        epoch, place = divmod(samples_done, len(self._order))
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.concatenate(self._curriculum.batches(epoch, self._batch_size))
        count = min(self._batch_size, self._work_samples - samples_done)
        return [int(number) for number in self._order[place : place + count]]

    def record(self, samples: Sequence[int], ratios: NDArray[np.float64], tokens: NDArray[np.int64]) -> None:
        self._curriculum.record(np.array(samples, np.int64), ratios, tokens)

    def tensors(self) -> dict[str, Tensor]:
        """Return the complexity as last recorded, and the order of the present epoch, which is from earlier
        records."""
        return {
            "vectors": torch.from_numpy(self._curriculum.vectors.copy()),
            "tokens": torch.from_numpy(self._curriculum.tokens.copy()),
            "order": torch.from_numpy(self._order.copy()),
            "epoch": torch.tensor([self._epoch]),
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._curriculum.vectors[:] = tensors["vectors"].numpy()
        self._curriculum.tokens[:] = tensors["tokens"].numpy()
        self._order[:] = tensors["order"].numpy()
        self._epoch = int(tensors["epoch"])
