"""Schemes that place experts batch by batch, by name: Lina's, the one that this project adds, and the rivals
(thesis, section 4.7)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from solvers.compiled import Ints
from solvers.experts.filling import fill_nothing, fill_popular
from solvers.experts.first_fit import place_first_fit
from solvers.experts.fixed import place_one_per_device
from solvers.experts.local import place_local
from solvers.experts.paths import PUBLISHED_TOP
from solvers.experts.placement import Cluster, Demand, Placement
from solvers.experts.replicated import place_replicated
from solvers.experts.revision import NEVER, BusiestDevice, Check, TopLists
from solvers.experts.splitting import even_split, split_by_shares

Basis = Literal["estimate", "history", "actual"]
"""Source of a placement. `estimate`: the sample paths of the batch. `history`: the loads of earlier batches.
`actual`: the choices of the gating network; all devices wait while the placement is made."""


class Settled(NamedTuple):
    """Placement and split of tokens with which a batch passes a layer."""

    placement: Placement
    split: Ints
    """Tokens that each slot processes, (devices, slots)."""
    tokens: Ints
    """Tokens that are split, (experts,): the counted ones, except for the ideal."""
    is_revised: bool
    """Whether the placement was made or replaced after the gating network had chosen."""


@dataclass(frozen=True)
class Scheme:
    """Method of placing experts for a batch, before its layer is reached and after the gating network."""

    place: Callable[[Demand, Cluster], Placement]
    basis: Basis
    split: Callable[[Placement, Ints], Ints]
    check: Check = NEVER
    fill: Callable[[Placement, Demand, Placement], Placement] = fill_nothing
    """Function that fills free slots before the layer is reached, by the demand and the loaded experts."""
    top: int | None = PUBLISHED_TOP
    """Experts of each sample path that an estimate counts; None for all."""
    balances_gating: bool = False
    """Whether tokens count as spread evenly over the experts, whatever was chosen."""

    def plan(self, demand: Demand, cluster: Cluster) -> Placement | None:
        """Return the placement of phase one, before the gating network chooses; None if it is made
        afterwards.

        Args:
            demand: demand by the scheme's basis; its total is 0 without information.
        """
        if self.basis == "actual":
            return None
        return self.place(demand, cluster)

    def settle(self, planned: Placement | None, demand: Demand, tokens: Ints, cluster: Cluster) -> Settled:
        """Return the final placement and the tokens of each replica (phase two).

        Args:
            planned: placement of phase one; None if it made none.
            demand: demand that `planned` was made from.
            tokens: (experts,) tokens of all ranks that chose each expert.
        """
        if self.balances_gating:
            tokens = _evenly(tokens)
        actual = Demand.of_counts(tokens)
        if planned is None or self.check.deviates(planned, demand, actual, cluster):
            placement, is_revised = self.place(actual, cluster), True
        else:
            placement, is_revised = planned, False
        return Settled(placement, self.split(placement, tokens), tokens, is_revised)


def _evenly(tokens: Ints) -> Ints:
    each, left = divmod(int(tokens.sum()), tokens.size)
    return np.full(tokens.size, each, np.int64) + (np.arange(tokens.size) < left)


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "balanced": Scheme(place_local, "estimate", even_split, BusiestDevice(), fill_popular, top=None),
        "lina": Scheme(place_first_fit, "estimate", split_by_shares, TopLists()),
        "without_estimation": Scheme(place_first_fit, "actual", split_by_shares),
        "without_fine_tuning": Scheme(place_first_fit, "estimate", split_by_shares),
        "one_per_device": Scheme(place_one_per_device, "history", split_by_shares),
        "eplb": Scheme(place_replicated, "history", split_by_shares),
        "ideal": Scheme(place_one_per_device, "history", split_by_shares, balances_gating=True),
    }
)
"""Schemes by name. `ideal` is the result of balanced gating with one expert per device (section 4.7.3.1)."""
