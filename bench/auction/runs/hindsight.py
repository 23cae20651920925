"""A day in hindsight: problem P, its optimum or a bound on it, and the fixed price with the most welfare."""

import math
from collections.abc import Callable, Iterator, Sequence

from bench.auction.runs.clearing import clearing_prices
from bench.workloads.cell import with_policy
from bench.workloads.paper import PaperSetting, draw
from infra.workloads.auction.bids import AuctionWorkload
from schemas.auction.settings import AuctionPolicy
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from solvers.auction.baselines.on_arrival import cheapest_vendor
from solvers.auction.mechanism.mechanism import Request
from solvers.auction.offline.hindsight import instances_of
from solvers.auction.offline.instance import Instance
from solvers.auction.offline.schedule_free import offline_optimum


def hindsight_of(cell: CellConfigured, workload: AuctionWorkload) -> Instance:
    """Return the instance of the cell's ledger of this day. It does not depend on executors' reports, and on
    its policy only by whether quotas are even."""
    (instance,) = instances_of(_events(cell, workload)).values()
    return instance


def _events(cell: CellConfigured, workload: AuctionWorkload) -> Iterator[Event]:
    """Yield configuration, quotes, and the bids by time, each after the tick of its slot."""
    yield cell
    yield from workload.quotes
    time_s = -1.0
    for timed in workload.jobs:
        if timed.time_s > time_s:
            time_s = timed.time_s
            yield ClockTicked(cell=cell.cell, time_s=time_s)
        yield timed.event


TIME_LIMIT_S = 600.0
RELATIVE_GAP = 0.01
ROUNDS = 20
"""Enough for the value of the dual to be within some per cent of its least."""


def measure_optimum(setting: PaperSetting, seed: int) -> dict[str, float]:
    """Return the welfare of the best plans found, its upper bound, and the gap between them, for the auction
    with nothing declared."""
    instance = _undeclared(setting, seed)
    solution = offline_optimum(instance, TIME_LIMIT_S, RELATIVE_GAP)
    return {
        "welfare_micros": solution.welfare_micros,
        "bound_micros": solution.bound_micros,
        # Infinite if no plan was found, which JSON cannot express.
        "gap": min(solution.gap, 1e9),
        "wall_s": solution.seconds,
        "bids": len(instance.tasks),
    }


def measure_clearing_bound(setting: PaperSetting, seed: int) -> dict[str, float]:
    """Return an upper bound on the welfare of the auction with nothing declared, by the prices that clear the
    day's market: the value of a point of the dual."""
    return {"bound_micros": clearing_prices(_undeclared(setting, seed), ROUNDS).bound_micros}


def _undeclared(setting: PaperSetting, seed: int) -> Instance:
    cell, workload = draw(setting, seed)
    return hindsight_of(with_policy(cell, AuctionPolicy()), workload)


PARTS = 12
"""Number of prices that are tried first: 0, and others at equal distances among the break-even prices."""
REFINEMENTS = 5
"""Number of further prices between the neighbours of the best, by golden section."""
_GOLDEN = (math.sqrt(5) - 1) / 2


def break_even_prices(instance: Instance) -> list[int]:
    """Return the highest price per thousand samples, in micros, at which each task buys, ascending.

    It is just below the bid less the cheapest vendor's price, over the work. Tasks that an empty fleet cannot
    do in time, or whose bid does not cover the vendor, buy at no price and are left out.
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
    """Return the best of the tried prices; the lower one of a tie.

    All of them are 0 or a break-even price: in between, the same tasks can buy. So the search is over the
    part of the tasks that a price excludes: twelfths from 0 on, and then, since welfare mostly has one peak
    over it, a golden section between the neighbours of the best.
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
    """Return the price that excludes a part of the tasks."""
    if part <= 0 or not break_even:
        return 0
    return break_even[min(int(part * len(break_even)), len(break_even) - 1)]
