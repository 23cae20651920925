"""Phase two: after a layer's gating network has chosen, a placement made from an estimate is kept or replaced
(thesis, section 4.5.2)."""

from dataclasses import dataclass
from typing import Protocol

from solvers.experts.placement import Cluster, Demand, Placement
from solvers.experts.splitting import device_loads, even_split

PUBLISHED_TOP = 1
"""k in inference: the two most popular experts are compared (erratum I2)."""


class Check(Protocol):
    """Check whether a placement deviates too much to be kept."""

    def deviates(self, placement: Placement, estimated: Demand, actual: Demand, cluster: Cluster) -> bool:
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

    def deviates(self, placement: Placement, estimated: Demand, actual: Demand, cluster: Cluster) -> bool:
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

    def deviates(self, placement: Placement, estimated: Demand, actual: Demand, cluster: Cluster) -> bool:
        """See `Check`."""
        del estimated
        largest = int(device_loads(even_split(placement, actual.loads)).max())
        mean = -(-actual.known // cluster.devices)
        return largest > mean * (1 + self.most_above_mean)


@dataclass(frozen=True)
class Never:
    """Check that keeps every placement (without fine-tuning, section 4.7.3.1)."""

    def deviates(self, placement: Placement, estimated: Demand, actual: Demand, cluster: Cluster) -> bool:
        """See `Check`."""
        del placement, estimated, actual, cluster
        return False


NEVER = Never()
