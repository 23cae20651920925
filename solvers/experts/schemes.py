"""Schemes that place experts batch by batch, by name: Lina's, the one that this project adds, and the rivals
(thesis, section 4.7).

In phase two, after a layer's gating network has chosen, a placement made from an estimate is kept or replaced
(section 4.5.2)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

import numpy as np

from solvers.compiled import Ints
from solvers.experts.balanced import place_local
from solvers.experts.moves import fill_nothing, fill_popular
from solvers.experts.paths import PUBLISHED_TOP
from solvers.experts.placement import DeviceGroup, ExpertDemand, ExpertPlacement
from solvers.experts.published import place_first_fit, place_one_per_device, place_replicated
from solvers.experts.splitting import device_loads, even_split, split_by_shares

Basis = Literal["estimate", "history", "actual"]
"""Source of a placement. `estimate`: the sample paths of the batch. `history`: the loads of earlier batches.
`actual`: the choices of the gating network; all devices wait while the placement is made."""


class Check(Protocol):
    """Check whether a placement deviates too much to be kept."""

    def deviates(
        self, placement: ExpertPlacement, estimated: ExpertDemand, actual: ExpertDemand, cluster: DeviceGroup
    ) -> bool:
        """Return whether the placement is to be replaced.

        Args:
            placement: the placement made from the estimate.
            actual: the counted demand.
        """
        ...


@dataclass(frozen=True)
class TopLists:
    """The thesis' check: the lists of the 2k most popular experts, estimated and actual, differ.

    They are compared as lists, so another order is a difference: if the most popular expert was estimated as
    the second, it has too few devices. An expert without any load is in no list.
    """

    k: int = PUBLISHED_TOP
    """In inference, the two most popular experts are compared (erratum I2)."""

    def deviates(
        self, placement: ExpertPlacement, estimated: ExpertDemand, actual: ExpertDemand, cluster: DeviceGroup
    ) -> bool:
        """See `Check`."""
        del placement, cluster
        return estimated.top(2 * self.k) != actual.top(2 * self.k)


@dataclass(frozen=True)
class BusiestDevice:
    """Check that the busiest device exceeds the mean by more than a share, with tokens split evenly.

    A wrong order of experts costs nothing if the placement still serves it well; a right order does not
    compensate for wrong proportions. The lists show neither.
    """

    most_above_mean: float = 0.05
    """Share above the mean load of the devices; 0.05 is 5 %."""

    def deviates(
        self, placement: ExpertPlacement, estimated: ExpertDemand, actual: ExpertDemand, cluster: DeviceGroup
    ) -> bool:
        """See `Check`."""
        del estimated
        largest = int(device_loads(even_split(placement, actual.loads)).max())
        mean = -(-actual.known // cluster.devices)
        return largest > mean * (1 + self.most_above_mean)


@dataclass(frozen=True)
class Never:
    """Check that keeps every placement (without fine-tuning, section 4.7.3.1)."""

    def deviates(
        self, placement: ExpertPlacement, estimated: ExpertDemand, actual: ExpertDemand, cluster: DeviceGroup
    ) -> bool:
        """See `Check`."""
        del placement, estimated, actual, cluster
        return False


NEVER = Never()


class Settled(NamedTuple):
    """Placement and split of tokens with which a batch passes a layer."""

    placement: ExpertPlacement
    split: Ints
    """Tokens that each slot processes, (devices, slots)."""
    tokens: Ints
    """Tokens that are split, (experts,): the counted ones, except for the ideal."""
    is_revised: bool
    """Whether the placement was made or replaced after the gating network had chosen."""


@dataclass(frozen=True)
class PlacementScheme:
    """Method of placing experts for a batch, before its layer is reached and after the gating network."""

    place: Callable[[ExpertDemand, DeviceGroup], ExpertPlacement]
    basis: Basis
    split: Callable[[ExpertPlacement, Ints], Ints]
    check: Check = NEVER
    fill: Callable[[ExpertPlacement, ExpertDemand, ExpertPlacement], ExpertPlacement] = fill_nothing
    """Function that fills free slots before the layer is reached, by the demand and the loaded experts."""
    top: int | None = PUBLISHED_TOP
    """Experts of each sample path that an estimate counts; None for all."""
    balances_gating: bool = False
    """Whether tokens count as spread evenly over the experts, whatever was chosen."""

    def plan(self, demand: ExpertDemand, cluster: DeviceGroup) -> ExpertPlacement | None:
        """Return the placement of phase one, before the gating network chooses; None if it is made
        afterwards.

        Args:
            demand: demand by the scheme's basis; its total is 0 without information.
        """
        if self.basis == "actual":
            return None
        return self.place(demand, cluster)

    def settle(
        self, planned: ExpertPlacement | None, demand: ExpertDemand, tokens: Ints, cluster: DeviceGroup
    ) -> Settled:
        """Return the final placement and the tokens of each replica (phase two).

        Args:
            planned: placement of phase one; None if it made none.
            demand: demand that `planned` was made from.
            tokens: (experts,) tokens of all ranks that chose each expert.
        """
        if self.balances_gating:
            tokens = _evenly(tokens)
        actual = ExpertDemand.of_counts(tokens)
        if planned is None or self.check.deviates(planned, demand, actual, cluster):
            placement, is_revised = self.place(actual, cluster), True
        else:
            placement, is_revised = planned, False
        return Settled(placement, self.split(placement, tokens), tokens, is_revised)


def _evenly(tokens: Ints) -> Ints:
    each, left = divmod(int(tokens.sum()), tokens.size)
    return np.full(tokens.size, each, np.int64) + (np.arange(tokens.size) < left)


SCHEMES: Mapping[str, PlacementScheme] = MappingProxyType(
    {
        "balanced": PlacementScheme(
            place_local, "estimate", even_split, BusiestDevice(), fill_popular, top=None
        ),
        "lina": PlacementScheme(place_first_fit, "estimate", split_by_shares, TopLists()),
        "without_estimation": PlacementScheme(place_first_fit, "actual", split_by_shares),
        "without_fine_tuning": PlacementScheme(place_first_fit, "estimate", split_by_shares),
        "one_per_device": PlacementScheme(place_one_per_device, "history", split_by_shares),
        "eplb": PlacementScheme(place_replicated, "history", split_by_shares),
        "ideal": PlacementScheme(place_one_per_device, "history", split_by_shares, balances_gating=True),
    }
)
"""Schemes by name. `ideal` is the result of balanced gating with one expert per device (section 4.7.3.1)."""
