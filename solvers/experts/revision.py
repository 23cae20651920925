"""Phase two: once a layer's gating network has chosen, a placement made from an estimate is kept or made anew
(thesis, section 4.5.2)."""

from dataclasses import dataclass
from typing import Protocol

from solvers.experts.placement import Cluster, Demand, Placement
from solvers.experts.splitting import device_loads, even_split

PUBLISHED_TOP = 1
"""k in inference: the two most popular experts are compared (erratum I2)."""


class Check(Protocol):
    """Whether a placement is too far off to be kept."""

    def deviates(self, placement: Placement, estimated: Demand, actual: Demand, cluster: Cluster) -> bool:
        """Whether it is to be made anew.

        Args:
            placement: what was made from the estimate.
            actual: what was counted.
        """
        ...


@dataclass(frozen=True)
class TopLists:
    """The thesis' check: the lists of the 2k most popular experts, estimated and actual, differ.

    They are compared as lists, so another order counts as a difference: an expert with most tokens that was
    taken for the second has too few devices. An expert without any load is in no list.
    """

    k: int = PUBLISHED_TOP

    def deviates(self, placement: Placement, estimated: Demand, actual: Demand, cluster: Cluster) -> bool:
        """See `Check`."""
        del placement, cluster
        return estimated.top(2 * self.k) != actual.top(2 * self.k)


@dataclass(frozen=True)
class BusiestDevice:
    """The device with the most tokens has more than a share above the mean, however tokens are split.

    A wrong order of experts that the placement serves well all the same costs nothing; a right one does not
    make up for wrong proportions. Both are what the lists cannot tell.
    """

    most_above_mean: float = 0.05
    """0.05: 5 % more than if all devices had as many."""

    def deviates(self, placement: Placement, estimated: Demand, actual: Demand, cluster: Cluster) -> bool:
        """See `Check`."""
        del estimated
        largest = int(device_loads(even_split(placement, actual.loads)).max())
        mean = -(-actual.known // cluster.devices)
        return largest > mean * (1 + self.most_above_mean)


@dataclass(frozen=True)
class Never:
    """What was planned is kept (without fine-tuning, section 4.7.3.1)."""

    def deviates(self, placement: Placement, estimated: Demand, actual: Demand, cluster: Cluster) -> bool:
        """See `Check`."""
        del placement, estimated, actual, cluster
        return False


NEVER = Never()
