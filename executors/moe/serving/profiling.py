"""Forecasts of the load of a layer's experts before its gating network has chosen, and the profile stage that
they are made from: a service's first batches. Until it is over, sample paths of the model's training count,
if it has any (thesis, section 4.5.2; erratum I4)."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from solvers.compiled import Ints
from solvers.experts.paths import PathProfile, PopularityEstimator
from solvers.experts.placement import ExpertDemand
from solvers.experts.schemes import PlacementScheme

_HELD_BACK_PART = 4
_MOST_HELD_BACK = 16
_ACCURATE_TOP = 2
"""Whether the two most popular experts must be right, in order, for a right estimate (section 4.7.3.2)."""

_FADING = 16
"""Divisor of the part of the counts that is dropped with each batch."""


@dataclass(frozen=True)
class Profiled:
    """Results of the stage.

    Attributes:
        profile: profile of all its batches.
        accuracy: for the last batches, by a profile of the earlier ones: fraction of batches and layers with
            a right top-2 estimate. Layers count from the l-th on, as paths have l layers, or only the last if
            there are fewer. None if there were too few batches for a comparison.
    """

    profile: PathProfile
    accuracy: float | None

    @property
    def paths(self) -> int:
        """Number of sample paths of full length, over all layers."""
        length = self.profile.length
        return sum(tables[length].keys.size for tables in self.profile.tables if len(tables) > length)


class ProfileStage:
    """Counts batches until there are enough. The same on all ranks, which get the tokens of all."""

    def __init__(self, batches: int, profile: PathProfile, top: int | None) -> None:
        """
        Args:
            batches: number of batches in the profile.
            profile: profile that they are added to.
            top: experts of each path that estimates count, from the scheme.
        """
        self._left = batches
        self._profile = profile
        self._top = top
        self._held_back_from = min(batches // _HELD_BACK_PART, _MOST_HELD_BACK)
        self._held_back: list[Ints] = []

    @property
    def is_over(self) -> bool:
        """Return whether the stage is complete."""
        return self._left <= 0

    def add(self, selections: Ints) -> None:
        """Add a batch.

        Args:
            selections: (tokens, layers) of all ranks.
        """
        if self._left <= self._held_back_from:
            self._held_back.append(selections)
        else:
            self._profile.add(selections)
        self._left -= 1

    def conclude(self) -> Profiled:
        """Return the results of all batches."""
        accuracy = None
        if self._held_back:
            estimator = PopularityEstimator(self._profile, self._top)
            right = [is_right for batch in self._held_back for is_right in _are_right(estimator, batch)]
            accuracy = sum(right) / len(right)
        for batch in self._held_back:
            self._profile.add(batch)
        self._held_back = []
        return Profiled(self._profile, accuracy)


def is_as_forecast(forecast: ExpertDemand, tokens: Ints) -> bool:
    """Return whether the top-2 experts of a layer are as forecast.

    Args:
        tokens: (experts,) counts.
    """
    return forecast.top(_ACCURATE_TOP) == ExpertDemand.of_counts(tokens).top(_ACCURATE_TOP)


def _are_right(estimator: PopularityEstimator, batch: Ints) -> list[bool]:
    experts, layers = estimator.profile.experts, batch.shape[1]
    return [
        is_as_forecast(
            estimator.estimate(layer, batch[:, :layer]), np.bincount(batch[:, layer], minlength=experts)
        )
        for layer in range(min(estimator.profile.length, layers - 1), layers)
    ]


class History:
    """Load of experts in the batches before, in which older ones fade."""

    def __init__(self, layers: int, experts: int) -> None:
        self._counts = np.zeros((layers, experts), np.int64)

    def add(self, layer: int, tokens: Ints) -> None:
        """Add a batch.

        Args:
            tokens: (experts,) number of this rank's tokens for each.
        """
        # A batch counts with a factor, so that small counts fade, too.
        self._counts[layer] += tokens * _FADING - self._counts[layer] // _FADING

    def demand(self, layer: int) -> ExpertDemand:
        """Return the load of the experts of a layer."""
        return ExpertDemand.of_counts(self._counts[layer])


class LoadForecast(Protocol):
    """Forecast of one rank for its own tokens; those of all ranks are combined."""

    def __call__(self, layer: int, selections: Ints) -> ExpertDemand:
        """Return the forecast for a layer.

        Args:
            selections: (tokens, layers) expert of each token at each MoE layer before.
        """
        ...


def without_forecast(experts: int) -> LoadForecast:
    """Return a forecast without information."""
    unknown = ExpertDemand.of_counts(np.zeros(experts, np.int64))
    return lambda layer, selections: unknown  # noqa: ARG005


def forecast_of(profile: PathProfile, history: History, scheme: PlacementScheme) -> LoadForecast:
    """Return the forecast after the profile stage, by the scheme's basis."""
    if scheme.basis == "estimate":
        return PopularityEstimator(profile, scheme.top).estimate
    if scheme.basis == "history":
        return lambda layer, selections: history.demand(layer)  # noqa: ARG005
    return without_forecast(profile.experts)
