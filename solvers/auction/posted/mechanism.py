"""Rules of the auction at posted prices."""

import math

from solvers.auction.market.market import Market
from solvers.auction.market.window import Window
from solvers.auction.mechanism.mechanism import Charge, Price, Request
from solvers.auction.mechanism.search import Schedule
from solvers.auction.posted.prices import PostedPrices


class Posted:
    """Mechanism of posted prices, see `Mechanism`. A task is placed where it leaves most room to others, and
    its price is that of its cheapest plan. Both depend on the present posted prices, and not on the bid."""

    def __init__(self, prices: PostedPrices) -> None:
        self._prices = prices

    def plan(self, market: Market, request: Request, window: Window) -> Schedule | None:  # noqa: ARG002
        return self._prices.plan(request.demand, window)

    def price(self, schedule: Schedule, _work_samples: int) -> Price:
        """Return the price of the cheapest plan."""
        return Price.of(schedule)

    def charge(self, price: Price) -> Charge:
        return Charge(math.ceil(price.micros), price.operational_micros)
