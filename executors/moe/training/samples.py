"""Samples of a step: the same on all ranks, for any number of ranks."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executors.gang.batches import global_batch
from executors.moe.curriculum import Curriculum
from schemas.experts.workload import MoeTrainWorkload


class SampleOrder(Protocol):
    """The order of a dataset's samples in training."""

    def batch(self, samples_done: int) -> Sequence[int]:
        """Return the record numbers of the step after some samples; empty when all work is done."""

    def record(self, samples: Sequence[int], ratios: NDArray[np.float64], tokens: NDArray[np.int64]) -> None:
        """Record the routing of a batch: see `Curriculum.record`."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors for a checkpoint."""

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from the tensors of a checkpoint."""


def order_of(workload: MoeTrainWorkload, records: int, layers: int) -> SampleOrder:
    """Return the order that a job requests."""
    if workload.hyperparameters.curriculum:
        return ByComplexity(workload, records, layers)
    return Shuffled(workload, records)


class Shuffled:
    """A new order for each epoch, which depends on the seed; batches continue from one epoch to the next."""

    def __init__(self, workload: MoeTrainWorkload, records: int) -> None:
        self._workload = workload
        self._records = records

    def batch(self, samples_done: int) -> Sequence[int]:
        """See `SampleOrder`."""
        hyperparameters, work = self._workload.hyperparameters, self._workload.work_samples
        return global_batch(
            self._records, hyperparameters.seed, samples_done, hyperparameters.global_batch_size, work
        )

    def record(self, samples: Sequence[int], ratios: NDArray[np.float64], tokens: NDArray[np.int64]) -> None:
        """Do nothing: the order does not depend on it."""

    def tensors(self) -> dict[str, Tensor]:
        """Return no tensors: the order follows from the seed and the samples done."""
        return {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Do nothing."""


class ByComplexity:
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
        """See `SampleOrder`."""
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
        """See `SampleOrder`."""
        self._curriculum.vectors[:] = tensors["vectors"].numpy()
        self._curriculum.tokens[:] = tensors["tokens"].numpy()
        self._order[:] = tensors["order"].numpy()
        self._epoch = int(tensors["epoch"])
