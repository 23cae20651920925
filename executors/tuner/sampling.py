"""Choice of the records of a step: a function of seed, step and data only, on any number of ranks.

A job alone uses its data in a new order each epoch. Two jobs in one run draw each sequence of a step from
either's data by annealed sampling (Stickland and Murray, "BERT and PALs", ICML 2019, section 4.2).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from executors.lora.dataset import Cursor, take
from executors.lora.randomness import derive_seed

LAST_EXPONENT = 0.2
"""Final exponent: a large dataset is then drawn hardly more often than a small one."""


@dataclass(frozen=True)
class Stream:
    """Endless shuffled stream of one job's data."""

    records: int
    seed: int

    def take(self, drawn: int, count: int) -> list[int]:
        """Return `count` record indices after the stream's first `drawn` samples."""
        return take(self.records, self.seed, self.cursor(drawn), count)[0]

    def cursor(self, drawn: int) -> Cursor:
        """Return the place after `drawn` samples."""
        return Cursor(*divmod(drawn, self.records))


def annealing_exponent(epoch: int, epochs: int) -> float:
    """Return alpha of the epoch with this number, from 0: it falls from 1 to `LAST_EXPONENT` in equal parts.

    In the first epoch, datasets are drawn in proportion to their sizes; this is also the only epoch of one.
    """
    if epochs <= 1:
        return 1.0
    return 1.0 - (1.0 - LAST_EXPONENT) * min(epoch, epochs - 1) / (epochs - 1)


def shares(sizes: Sequence[int], exponent: float) -> list[float]:
    """Return the probability of drawing a sequence from each dataset: in proportion to its size to the power
    of `exponent`."""
    weights = [math.pow(size, exponent) for size in sizes]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def draw_sources(seed: int, step: int, count: int, probabilities: Sequence[float]) -> list[int]:
    """Draw the dataset, by index, of each of a step's `count` sequences."""
    if len(probabilities) == 1:
        return [0] * count
    draws = np.random.default_rng(derive_seed(seed, "sources", step)).random(count)
    edges = np.cumsum(probabilities)[:-1]
    return [int(index) for index in np.searchsorted(edges, draws, side="right")]
