"""Rules of pdFTSP: the plan of least critical value, and the payment of winners."""

import math
from dataclasses import dataclass
from typing import Literal

from solvers.auction.market.market import Market
from solvers.auction.market.window import Window
from solvers.auction.mechanism.mechanism import Charge, Price, Request
from solvers.auction.mechanism.published_search import published_schedule
from solvers.auction.mechanism.search import SEARCH_BUDGET_STEPS, Schedule, best_schedule

PaymentRule = Literal["critical", "published"]
Order = Literal["room_first", "published"]
Search = Literal["exact", "published"]


@dataclass(frozen=True)
class PrimalDual:
    """See `Mechanism`."""

    payment: PaymentRule
    order: Order = "room_first"
    """Check of room: before a plan is made (erratum P2), or after prices are raised, as printed."""
    search: Search = "exact"
    """Search for the plan: exact, or Algorithm 2 as printed (erratum P3)."""

    budget_steps: int = SEARCH_BUDGET_STEPS
    """Budget of the search for the best plan."""

    def plan(self, market: Market, request: Request, window: Window) -> Schedule | None:
        room_only = self.order == "room_first"
        if self.search == "exact":
            return best_schedule(market, request.demand, window, room_only, self.budget_steps)
        return published_schedule(market, request, window, room_only)

    def price(self, schedule: Schedule, _work_samples: int) -> Price:
        """Return the critical value (erratum P1)."""
        return Price.of(schedule)

    def charge(self, price: Price) -> Charge:
        if self.payment == "critical":
            return Charge(math.ceil(price.micros), price.operational_micros)
        # Eq. 14 as printed: without the operational cost, and not truthful (erratum P1).
        parts = (price.vendor_micros, price.compute_micros, price.memory_micros)
        return Charge(math.ceil(math.fsum(parts)), 0)
