"""Problem P as data (section 2.2): node-slots with room, and tasks.

The offline optimum uses the tasks of a whole day. A scheduler that decides in batches uses the tasks that
have just arrived, and the remaining room.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from solvers.auction.market.demand import Demand
from solvers.auction.market.fleet import Fleet
from solvers.auction.market.market import Placement
from solvers.auction.market.window import VendorOption
from solvers.compiled import Floats


@dataclass(frozen=True)
class OfferedTask:
    """Bid as input of the solvers."""

    job_id: str
    bid_micros: int
    """Bid b_i."""
    demand: Demand
    options: tuple[VendorOption, ...]
    """Prices q_in and delays h_in; one option without vendor if the task needs none."""
    first_slot: int
    """First slot that a plan may use, before any vendor's delay."""
    last_slot: int
    """Last slot d_i. Both slots are absolute, included, and within the instance's."""


@dataclass(frozen=True)
class Instance:
    """Tasks and the room for them; arrays are over the slots from `first_slot` on."""

    fleet: Fleet
    first_slot: int
    full_costs: Floats
    """Operational cost of a fully used node, in micros, (slots, classes)."""
    free_samples: Floats
    """Free samples, whole numbers, (slots, nodes); 0 for a node that is down."""
    free_gib: Floats
    """Free memory, (slots, nodes)."""
    tasks: Sequence[OfferedTask]

    @property
    def slots(self) -> int:
        """Number of slots."""
        return len(self.full_costs)


@dataclass(frozen=True)
class PlannedTask:
    """Admitted task with its vendor and placement (u_i = 1, z_in, x_ikt)."""

    job_id: str
    option: VendorOption
    placement: Placement
