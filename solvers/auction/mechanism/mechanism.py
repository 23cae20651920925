"""How policies differ: the plan for a task, and its price."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from solvers.auction.market.demand import Demand
from solvers.auction.market.market import Market
from solvers.auction.market.window import VendorOption, Window
from solvers.auction.mechanism.search import Schedule


class Request(NamedTuple):
    """What a user asks for: all of a bid but its price."""

    id: str
    """Of the job, or of the request for a quote."""
    demand: Demand
    options: Sequence[VendorOption]
    """What vendors ask; one option without vendor for a task that needs none."""
    first_slot: int
    """a_i: the first slot that a plan may use, before any vendor's delay."""
    last_slot: int
    """d_i. Both are absolute and included."""


class Price(NamedTuple):
    """What a plan costs its user, part by part; a bid wins iff it is above the sum."""

    vendor_micros: int
    operational_micros: int
    compute_micros: float
    memory_micros: float

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        """All that a schedule costs."""
        return cls(
            schedule.vendor_micros,
            schedule.operational_micros,
            schedule.compute_micros,
            schedule.memory_micros,
        )

    @property
    def micros(self) -> float:
        """All parts together."""
        return math.fsum(
            (self.vendor_micros, self.operational_micros, self.compute_micros, self.memory_micros)
        )

    @property
    def lowest_winning_bid_micros(self) -> int:
        """The least whole bid above the price."""
        return math.floor(self.micros) + 1


class Charge(NamedTuple):
    """What a winner pays."""

    micros: int
    operational_micros: int
    """The part of it that is for operation: what a withdrawal may give back."""


@dataclass(frozen=True)
class PriceRises:
    """How the prices of resources rise with what is taken of them (Eqs. 7 and 8)."""

    alpha: float
    """Factor of Eq. 7, from declared bounds (erratum P4)."""
    beta: float
    """Factor of Eq. 8, likewise."""
    max_density_micros: float = math.inf
    """The largest b-bar with which a bid raises prices."""


class Mechanism(Protocol):
    """A policy's own rules. None of them sees a bid, or keeps a state of its own."""

    def plan(self, market: Market, request: Request, window: Window) -> Schedule | None:
        """The plan for a task in the room there is, or None without one.

        `window` is the request's part of the market, where an empty market could do the work in time.
        """

    def price(self, schedule: Schedule, work_samples: int, /) -> Price:
        """What a bid must be above to get this plan for so much work."""

    def charge(self, price: Price) -> Charge:
        """What a bid above this price pays: no more than the price, rounded up to the micro."""
