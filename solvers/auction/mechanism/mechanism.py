"""Interfaces in which policies differ: how a plan is found, its price, and how prices of resources move."""

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

from solvers.auction.market.demand import Demand
from solvers.auction.market.market import Market, Placement
from solvers.auction.market.window import VendorOption, Window
from solvers.auction.mechanism.search import Schedule
from solvers.compiled import Floats


class Request(NamedTuple):
    """Request of a user: a bid without its price."""

    id: str
    """Id of the job, or of the request for a quote."""
    demand: Demand
    options: Sequence[VendorOption]
    """Offers of vendors; one option without vendor for a task that needs none."""
    first_slot: int
    """First slot a_i that a plan may use, before any vendor's delay; absolute."""
    last_slot: int
    """Last slot d_i that a plan may use; absolute."""


class Price(NamedTuple):
    """Price of a plan in parts; a bid wins iff it is above the sum."""

    vendor_micros: int
    operational_micros: int
    compute_micros: float
    memory_micros: float

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        """Return the total cost of a schedule in parts."""
        return cls(
            schedule.vendor_micros,
            schedule.operational_micros,
            schedule.compute_micros,
            schedule.memory_micros,
        )

    @property
    def micros(self) -> float:
        """Sum of all parts."""
        return math.fsum(
            (self.vendor_micros, self.operational_micros, self.compute_micros, self.memory_micros)
        )

    @property
    def lowest_winning_bid_micros(self) -> int:
        """Least whole bid above the price."""
        return math.floor(self.micros) + 1


class Charge(NamedTuple):
    """Payment of a winner."""

    micros: int
    operational_micros: int
    """Part for operation, which a withdrawal may refund."""


@dataclass(frozen=True)
class PriceRises:
    """Parameters of the rise of prices with the use of resources (Eqs. 7 and 8)."""

    alpha: float
    """Factor of Eq. 7, from declared bounds (erratum P4)."""
    beta: float
    """Factor of Eq. 8, from declared bounds (erratum P4)."""
    max_density_micros: float = math.inf
    """Largest b-bar with which a bid raises prices."""


class Mechanism(Protocol):
    """Rules of a policy. None of them reads a bid, or keeps a state."""

    def plan(self, market: Market, request: Request, window: Window) -> Schedule | None:
        """Return the plan for a task in the present room, or None without one.

        `window` is the request's part of the market; an empty market could do the work in time.
        """

    def price(self, schedule: Schedule, work_samples: int, /) -> Price:
        """Return the price that a bid must exceed to get this plan for so much work."""

    def charge(self, price: Price) -> Charge:
        """Return the payment of a bid above this price: at most the price, rounded up to the micro."""


class Counted(NamedTuple):
    """Contribution of a bid to the certificate, and to the data from which prices are learned.

    It is kept with an admitted job, so that a withdrawal can take it back.
    """

    gain_micros: int = 0
    """Contribution mu_il of the bid to the dual bound, besides its rises of prices."""
    net_micros: int = 0
    """Bid less the least cost of vendor and operation of any plan."""
    compute_units: float = 0.0
    """Least compute of any plan: see `posted/room.py`."""
    memory_units: float = 0.0
    """Least memory of any plan."""
    window_slots: int = 0
    """Number of slots in which it might run."""
    slot: int = 0
    """First slot that could be planned when it was counted."""
    base_part: float = 1.0
    """Base level of prices before its award, as a part of the level after it: see `posted/levels.py`."""
    guard_part: float = 1.0
    """Guard level before its award, as a part of the level after it."""
    sold_units: float = 0.0
    """Awarded units at that time: the parts of compute and memory in a unit change."""
    share: float = 0.0
    """Mean share of a node that the awarded plan takes: of compute or of memory, the larger one."""


class Prices(Protocol):
    """Prices of one zone."""

    @property
    def bound_micros(self) -> int:
        """Value of the dual point: no schedule of the counted bids has more welfare."""

    def advance(self) -> None:
        """Update the prices after the market's window has moved."""

    def count_bid(self, bid_micros: int, request: Request, window: Window | None) -> Counted:
        """Count a bid in the bound.

        Args:
            window: the request's part of the market; None if no plan could do the work in time.
        """

    def lost(self, counted: Counted) -> None:
        """Count the loss of a counted bid."""

    def rise(self, schedule: Schedule, demand: Demand, counted: Counted, welfare_micros: int) -> float:
        """Raise prices for an award before its room is taken, and return b-bar_il, by which replanning raises
        them later."""

    def awarded(self, schedule: Schedule, demand: Demand, bid_micros: int, counted: Counted) -> Counted:
        """Count an award that has its room, and return the contribution to keep for a withdrawal."""

    def withdrawn(self, counted: Counted) -> None:
        """Subtract a withdrawn bid, admitted or waiting."""

    def released(self, placement: Placement, demand: Demand) -> None:
        """Count future node-slots released by a job that still counts in the planned welfare: other jobs may
        use them."""

    def replan(
        self,
        demand: Demand,
        window: Window,
        priced_slots: AbstractSet[tuple[int, int]],
        density_micros: float,
        budget_steps: int,
    ) -> Schedule | None:
        """Find a plan for the rest of an admitted task, take its room, and raise the prices of the node-slots
        that are not in `priced_slots`."""

    @property
    def basis(self) -> "PostedBasis | None":
        """Values that determine prices; None if prices follow from settings and awards only."""

    def of_class(self, index: int) -> "ClassPrice":
        """Return the prices of the future node-slots of a class of nodes."""

    def of_node_slots(self) -> Floats:
        """Return the prices in micros of whole future node-slots, compute and memory, (slots, nodes)."""

    def inherit(self, before: "Prices") -> None:
        """Take over from prices of the zone with other nodes, window or settings, or of another kind. The
        bound then covers all bids so far."""

    def state(self) -> dict[str, Any]:
        """Return the mutable state, in types that msgpack writes."""

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state of prices of an equal zone."""


class PostedBasis(NamedTuple):
    """Values that determine posted prices: see `posted/`."""

    base_micros_per_unit: float
    guard_micros_per_unit: float
    compute_part: float
    """Part of compute in the price of a unit; the rest is for memory."""
    span_slots: int
    remembered_slots: float
    """Slots from which demand is estimated; older ones count less, and each by its expected demand."""
    expected_slots: float
    """Demand of the span at the rate of its busiest stretch, in mean slots."""
    believed_part: float
    """Part of the differences between hours of the day that counts in it, from 0 to 1."""
    expected_by_hour: tuple[float, ...]
    """Expected demand of a slot that begins in each hour of the day (UTC), as a part of the mean."""
    asked_share: float
    """Recent demand per slot, at any price, as a part of the zone's capacity."""
    fall: float
    """Part by which prices may fall in a slot."""


class ClassPrice(NamedTuple):
    """Prices in micros per node-slot over the window of a class of nodes."""

    mean_compute_micros: float
    highest_compute_micros: float
    mean_memory_micros: float
    highest_memory_micros: float
