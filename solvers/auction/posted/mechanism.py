"""The auction's rules at posted prices."""

import math

from solvers.auction.market.market import Market
from solvers.auction.market.window import Window
from solvers.auction.mechanism.mechanism import Charge, Price, Request
from solvers.auction.mechanism.search import Schedule
from solvers.auction.posted.prices import PostedPrices


class Posted:
    """See `Mechanism`: the cheapest plan's price, and a plan that leaves most to others. Both are those of
    the posted prices as they stand."""

    def __init__(self, prices: PostedPrices) -> None:
        self._prices = prices

    def plan(self, market: Market, request: Request, window: Window) -> Schedule | None:  # noqa: ARG002
        return self._prices.plan(request.demand, window)

    def price(self, schedule: Schedule, _work_samples: int) -> Price:
        """What the cheapest plan costs."""
        return Price.of(schedule)

    def charge(self, price: Price) -> Charge:
        return Charge(math.ceil(price.micros), price.operational_micros)
