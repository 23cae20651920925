"""The rivals of pdFTSP that decide on arrival (section 5.1): earliest finish, at cost or at a fixed price.

They know no prices of resources. What sets them apart is the vendor that they choose and what they charge;
whether tasks may share a node is up to the market.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from solvers.auction.earliest_finish import earliest_schedule
from solvers.auction.market import Market
from solvers.auction.mechanism import Charge, Price, Request
from solvers.auction.search import Schedule
from solvers.auction.vendor_choice import VendorChoice, cheapest_vendor
from solvers.auction.window import Window


@dataclass(frozen=True)
class EarliestFinish:
    """See `Mechanism`: the earliest finish after one vendor's delay, admitted iff the bid is above its cost.

    That no task loses money is more than the paper says of these rivals: a fair chance.
    """

    choose_vendor: VendorChoice
    price_rises: ClassVar[None] = None

    def plan(self, market: Market, request: Request, window: Window) -> Schedule | None:
        option = self.choose_vendor(request, window.slots)
        return None if option is None else earliest_schedule(market, request.demand, window.columns, option)

    def price(self, schedule: Schedule, _work_samples: int) -> Price:
        """Vendor and operation."""
        return Price(schedule.vendor_micros, schedule.operational_micros, 0.0, 0.0)

    def charge(self, price: Price) -> Charge:
        return Charge(math.ceil(price.micros), price.operational_micros)


@dataclass(frozen=True)
class FixedPrice:
    """See `Mechanism`: first come, first served by the cheapest vendor, at a fixed price for the work."""

    price_per_thousand_samples_micros: int
    price_rises: ClassVar[None] = None

    def plan(self, market: Market, request: Request, window: Window) -> Schedule | None:
        return EarliestFinish(cheapest_vendor).plan(market, request, window)

    def price(self, schedule: Schedule, work_samples: int) -> Price:
        """The vendor's, and the fixed one for all the rest: operation is not charged on its own."""
        work_micros = self.price_per_thousand_samples_micros * work_samples / 1_000
        return Price(schedule.vendor_micros, 0, work_micros, 0.0)

    def charge(self, price: Price) -> Charge:
        return Charge(math.ceil(price.micros), 0)
