"""Mechanism of a policy: the plan for a task, and its price."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from solvers.auction.market.demand import Demand
from solvers.auction.market.market import Market
from solvers.auction.market.window import VendorOption, Window
from solvers.auction.mechanism.search import Schedule


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
