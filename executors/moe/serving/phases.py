"""The two phases of placing a layer's experts for a batch (thesis, section 4.5.2), and the placement between
batches. Pure, and the same on all ranks."""

from dataclasses import dataclass

import numpy as np

from solvers.compiled import Ints
from solvers.experts.moves import fill_loaded, near
from solvers.experts.placement import DeviceGroup, ExpertDemand, ExpertPlacement
from solvers.experts.published import place_one_per_device
from solvers.experts.schemes import PlacementScheme, Settled
from solvers.experts.splitting import device_loads

_WORTH_SWAPPING = 0.05
"""Least relative decrease of the busiest device's load for which a commanded placement is replaced for a
batch."""


@dataclass(frozen=True, eq=False)
class StandingPlacement:
    """Placement of a layer's experts between batches.

    Attributes:
        is_commanded: whether the cell has commanded it. Otherwise it is valid only until there is a forecast.
    """

    placement: ExpertPlacement
    is_commanded: bool = False

    @classmethod
    def first(cls, experts: int, cluster: DeviceGroup) -> "StandingPlacement":
        """Return the placement before any command: an expert per device.

        Raises:
            ValueError: there is no room for all experts.
        """
        return cls(place_one_per_device(ExpertDemand.of_counts(np.zeros(experts, np.int64)), cluster))


@dataclass(frozen=True, eq=False)
class LayerLayout:
    """State of a layer when a batch arrives.

    Attributes:
        loaded: experts on its devices after the batch before.
    """

    scheme: PlacementScheme
    cluster: DeviceGroup
    standing: StandingPlacement
    loaded: ExpertPlacement

    def plan(self, demand: ExpertDemand) -> ExpertPlacement | None:
        """Return the placement of phase one, before the gating network chooses; None if it is made only
        afterwards.

        Without a forecast, the standing placement is kept. A commanded one is also kept if the scheme's own
        would be hardly better for the forecast. Otherwise the devices are numbered so that few experts have
        to be loaded.

        Args:
            demand: forecast of all ranks; total 0 without one.
        """
        planned = self.scheme.plan(demand, self.cluster)
        if planned is None:
            return None
        standing = self.standing.placement
        if not demand.total:
            return standing
        planned = standing if self._is_good_enough(planned, demand) else near(planned, self.loaded)
        return self.scheme.fill(planned, demand.filled(), self.loaded)

    def settle(self, planned: ExpertPlacement | None, demand: ExpertDemand, tokens: Ints) -> Settled:
        """Return the placement of phase two, and the load of each replica. Without a forecast, there is
        nothing to revise.

        Args:
            planned: placement of phase one.
            demand: forecast that it was made from.
            tokens: (experts,) counts of all ranks.
        """
        if planned is not None and not demand.total:
            return Settled(planned, self.scheme.split(planned, tokens), tokens, is_revised=False)
        settled = self.scheme.settle(planned, demand, tokens, self.cluster)
        if not settled.is_revised:
            return settled
        loaded = self.loaded if planned is None else planned
        placement = near(settled.placement, loaded)
        placement = fill_loaded(placement, ExpertDemand.of_counts(settled.tokens), loaded)
        return settled._replace(placement=placement, split=self.scheme.split(placement, settled.tokens))

    def _is_good_enough(self, planned: ExpertPlacement, demand: ExpertDemand) -> bool:
        """Return whether a commanded placement serves a demand about as well as the planned one."""
        if not self.standing.is_commanded:
            return False
        loads = demand.filled().loads
        largest = self._largest_load(self.standing.placement, loads)
        return largest - self._largest_load(planned, loads) < _WORTH_SWAPPING * largest

    def _largest_load(self, placement: ExpertPlacement, loads: Ints) -> int:
        return int(device_loads(self.scheme.split(placement, loads)).max())
