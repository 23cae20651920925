"""The fixed price that would have brought the most welfare on a day that is over."""

import math
from collections.abc import Callable, Sequence

from solvers.auction.baselines.on_arrival import cheapest_vendor
from solvers.auction.mechanism.mechanism import Request
from solvers.auction.offline.instance import Instance

PARTS = 12
"""So many prices are tried first: none, and at equal distances among what tasks break even at."""
REFINEMENTS = 5
"""So many more between the neighbours of the best of them, by golden section."""
_GOLDEN = (math.sqrt(5) - 1) / 2


def break_even_prices(instance: Instance) -> list[int]:
    """The highest price per thousand samples, in micros, at which each task buys, ascending.

    It is just below the bid less the cheapest vendor's price, over the work. Tasks that an empty fleet could
    not do in time, or whose bid does not pay for the vendor, buy at no price and have none.
    """
    prices = []
    for task in instance.tasks:
        request = Request(task.job_id, task.demand, task.options, task.first_slot, task.last_slot)
        vendor = cheapest_vendor(request, task.last_slot - task.first_slot + 1)
        if vendor is not None and task.bid_micros > vendor.price_micros:
            # A bid wins only above the price.
            prices.append((1_000 * (task.bid_micros - vendor.price_micros) - 1) // task.demand.work_samples)
    return sorted(prices)


def best_price(break_even: Sequence[int], welfare_micros: Callable[[int], float]) -> int:
    """The best of the prices that are tried; ties low.

    All of them are 0 or a break-even price: in between, the same tasks can buy. So the search is over the
    part of the tasks that a price turns away: twelfths from 0 on, and then, since welfare rises and falls
    with it by and large, a golden section between the neighbours of the best.
    """
    tried: dict[int, float] = {}

    def welfare_at(part: float) -> float:
        price = _price_at(break_even, part)
        if price not in tried:
            tried[price] = welfare_micros(price)
        return tried[price]

    best = max((step / PARTS for step in range(PARTS)), key=welfare_at)
    low, high = best - 1 / PARTS, best + 1 / PARTS
    lower, upper = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    for _ in range(REFINEMENTS - 1):
        if welfare_at(lower) >= welfare_at(upper):
            high, upper = upper, lower
            lower = high - _GOLDEN * (high - low)
        else:
            low, lower = lower, upper
            upper = low + _GOLDEN * (high - low)
    return max(tried, key=lambda price: (tried[price], -price))


def _price_at(break_even: Sequence[int], part: float) -> int:
    """The price that turns so large a part of the tasks away."""
    if part <= 0 or not break_even:
        return 0
    return break_even[min(int(part * len(break_even)), len(break_even) - 1)]
