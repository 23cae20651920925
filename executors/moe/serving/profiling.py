"""The profile stage of a service: the sample paths of its first batches (thesis, section 4.5.2)."""

from dataclasses import dataclass

import numpy as np

from solvers.compiled import Ints
from solvers.experts.paths import PathProfile, PopularityEstimator
from solvers.experts.placement import Demand

_HELD_BACK_PART = 4
_MOST_HELD_BACK = 16
_ACCURATE_TOP = 2
"""An estimate is right if the two most popular experts are, in their order (section 4.7.3.2)."""


@dataclass(frozen=True)
class Profiled:
    """What the stage has brought.

    Attributes:
        profile: of all its batches.
        accuracy: of the last of them, by a profile of those before: the fraction of batches and layers whose
            top-2 list is estimated right. Layers count from the l-th on, as paths have l layers, or the last
            where there are fewer. None where there were too few batches to hold any back.
    """

    profile: PathProfile
    accuracy: float | None

    @property
    def paths(self) -> int:
        """Sample paths of full length that are kept, over all layers."""
        length = self.profile.length
        return sum(tables[length].keys.size for tables in self.profile.tables if len(tables) > length)


class ProfileStage:
    """Counts batches until there are enough. The same on all ranks, which are told of all tokens."""

    def __init__(self, batches: int, profile: PathProfile, top: int | None) -> None:
        """
        Args:
            batches: how many are profiled.
            profile: is added to.
            top: experts of each path that estimates count, as the scheme says.
        """
        self._left = batches
        self._profile = profile
        self._top = top
        self._held_back_from = min(batches // _HELD_BACK_PART, _MOST_HELD_BACK)
        self._held_back: list[Ints] = []

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be added."""
        return self._left <= 0

    def add(self, selections: Ints) -> None:
        """Count a batch.

        Args:
            selections: (tokens, layers) of all ranks.
        """
        if self._left <= self._held_back_from:
            self._held_back.append(selections)
        else:
            self._profile.add(selections)
        self._left -= 1

    def conclude(self) -> Profiled:
        """What all batches have brought."""
        accuracy = None
        if self._held_back:
            estimator = PopularityEstimator(self._profile, self._top)
            right = [is_right for batch in self._held_back for is_right in _are_right(estimator, batch)]
            accuracy = sum(right) / len(right)
        for batch in self._held_back:
            self._profile.add(batch)
        self._held_back = []
        return Profiled(self._profile, accuracy)


def is_foretold(foretold: Demand, tokens: Ints) -> bool:
    """Whether the top-2 list of a layer is as foretold.

    Args:
        tokens: (experts,) counted ones.
    """
    return foretold.top(_ACCURATE_TOP) == Demand.of_counts(tokens).top(_ACCURATE_TOP)


def _are_right(estimator: PopularityEstimator, batch: Ints) -> list[bool]:
    experts, layers = estimator.profile.experts, batch.shape[1]
    return [
        is_foretold(
            estimator.estimate(layer, batch[:, :layer]), np.bincount(batch[:, layer], minlength=experts)
        )
        for layer in range(min(estimator.profile.length, layers - 1), layers)
    ]
