"""Forecasts of the load of a layer's experts before its gating network has chosen."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np

from solvers.compiled import Ints
from solvers.experts.paths import PathProfile, PopularityEstimator
from solvers.experts.placement import ExpertDemand
from solvers.experts.schemes import Basis, PlacementScheme

_FADING = 16
"""Divisor of the part of the counts that is dropped with each batch."""


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


def _by_estimate(profile: PathProfile, history: History, scheme: PlacementScheme) -> LoadForecast:
    del history
    return PopularityEstimator(profile, scheme.top).estimate


def _by_history(profile: PathProfile, history: History, scheme: PlacementScheme) -> LoadForecast:
    del profile, scheme
    return lambda layer, selections: history.demand(layer)  # noqa: ARG005


def _by_nothing(profile: PathProfile, history: History, scheme: PlacementScheme) -> LoadForecast:
    del history, scheme
    return without_forecast(profile.experts)


FORECASTS: Mapping[Basis, Callable[[PathProfile, History, PlacementScheme], LoadForecast]] = MappingProxyType(
    {"estimate": _by_estimate, "history": _by_history, "actual": _by_nothing}
)
"""Forecasts after the profile stage, by basis."""
