"""The two phases of placing a layer's experts for a batch (thesis, section 4.5.2), beside what stands between
batches. Pure, and the same on all ranks."""

from dataclasses import dataclass

import numpy as np

from solvers.compiled import Ints
from solvers.experts.filling import fill_loaded
from solvers.experts.fixed import place_one_per_device
from solvers.experts.moves import near
from solvers.experts.placement import Cluster, Demand, Placement
from solvers.experts.schemes import Scheme, Settled
from solvers.experts.splitting import device_loads

_WORTH_SWAPPING = 0.05
"""A placement that stands by command is left for a batch if the busiest device gets less by this share."""


@dataclass(frozen=True, eq=False)
class Standing:
    """Where the experts of a layer stand between batches.

    Attributes:
        is_commanded: whether the cell has said so. Otherwise it holds only until something is foretold.
    """

    placement: Placement
    is_commanded: bool = False

    @classmethod
    def first(cls, experts: int, cluster: Cluster) -> "Standing":
        """Before any command: an expert per device.

        Raises:
            ValueError: there is no room for all experts.
        """
        return cls(place_one_per_device(Demand.of_counts(np.zeros(experts, np.int64)), cluster))


@dataclass(frozen=True, eq=False)
class Layout:
    """A layer as it is when a batch comes.

    Attributes:
        loaded: what its devices hold by the batch before.
    """

    scheme: Scheme
    cluster: Cluster
    standing: Standing
    loaded: Placement

    def plan(self, demand: Demand) -> Placement | None:
        """Phase one: the placement before the gating network chooses; None if it is made only afterwards.

        With nothing foretold the standing placement is kept. One that the cell has commanded is also kept if
        the scheme's own would serve what is foretold hardly better. Otherwise the devices are numbered so
        that little has to be loaded.

        Args:
            demand: of all ranks, of total 0 where nothing is foretold.
        """
        planned = self.scheme.plan(demand, self.cluster)
        if planned is None:
            return None
        standing = self.standing.placement
        if not demand.total:
            return standing
        planned = standing if self._is_good_enough(planned, demand) else near(planned, self.loaded)
        return self.scheme.fill(planned, demand.filled(), self.loaded)

    def settle(self, planned: Placement | None, demand: Demand, tokens: Ints) -> Settled:
        """Phase two: the placement that holds, and what each replica takes. Where nothing was foretold there
        is nothing to revise.

        Args:
            planned: what phase one has made.
            demand: what it was made from.
            tokens: (experts,) counted ones, of all ranks.
        """
        if planned is not None and not demand.total:
            return Settled(planned, self.scheme.split(planned, tokens), tokens, is_revised=False)
        settled = self.scheme.settle(planned, demand, tokens, self.cluster)
        if not settled.is_revised:
            return settled
        loaded = self.loaded if planned is None else planned
        placement = near(settled.placement, loaded)
        placement = fill_loaded(placement, Demand.of_counts(settled.tokens), loaded)
        return settled._replace(placement=placement, split=self.scheme.split(placement, settled.tokens))

    def _is_good_enough(self, planned: Placement, demand: Demand) -> bool:
        """Whether a commanded placement serves a demand about as well as what is planned."""
        if not self.standing.is_commanded:
            return False
        loads = demand.filled().loads
        largest = self._largest_load(self.standing.placement, loads)
        return largest - self._largest_load(planned, loads) < _WORTH_SWAPPING * largest

    def _largest_load(self, placement: Placement, loads: Ints) -> int:
        return int(device_loads(self.scheme.split(placement, loads)).max())
