"""Problem P as data (section 2.2): node-slots with room, and tasks that want some.

The offline optimum takes the tasks of a whole day. A scheduler that decides in batches takes those that have
just arrived, and the room that is left.
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
    """A bid, as the solvers see it."""

    job_id: str
    bid_micros: int
    """b_i."""
    demand: Demand
    options: tuple[VendorOption, ...]
    """q_in and h_in; one option without vendor where the task needs none."""
    first_slot: int
    """The first slot that a plan may use, before any vendor's delay."""
    last_slot: int
    """d_i. Both slots are absolute, included, and within the instance's."""


@dataclass(frozen=True)
class Instance:
    """Tasks and the room for them; arrays are over the slots from `first_slot` on."""

    fleet: Fleet
    first_slot: int
    full_costs: Floats
    """(slots, classes) operational cost of a fully used node, in micros."""
    free_samples: Floats
    """(slots, nodes) whole samples; a node that is down has none."""
    free_gib: Floats
    """(slots, nodes)"""
    tasks: Sequence[OfferedTask]

    @property
    def slots(self) -> int:
        """How many there are."""
        return len(self.full_costs)


@dataclass(frozen=True)
class PlannedTask:
    """An admitted task and how it runs (u_i = 1, z_in, x_ikt)."""

    job_id: str
    option: VendorOption
    placement: Placement
