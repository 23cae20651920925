"""A day as problem P in hindsight: its optimum, or a bound on it."""

from collections.abc import Iterator

from bench.workloads.cell import with_policy
from bench.workloads.paper import PaperSetting, draw
from infra.workloads.auction.bids import AuctionWorkload
from schemas.auction.settings import AuctionPolicy
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from solvers.auction.offline.clearing import clearing_prices
from solvers.auction.offline.hindsight import instances_of
from solvers.auction.offline.instance import Instance
from solvers.auction.offline.optimum import offline_optimum


def hindsight_of(cell: CellConfigured, workload: AuctionWorkload) -> Instance:
    """The instance that the cell's ledger of this day makes: executors' reports say nothing of it, and of its
    policy only whether quotas are even."""
    (instance,) = instances_of(_events(cell, workload)).values()
    return instance


def _events(cell: CellConfigured, workload: AuctionWorkload) -> Iterator[Event]:
    """Configuration, quotes, and the bids in the order of their times, each after the tick of its slot."""
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
"""Enough for the value of the dual to come within some percent of its least."""


def measure_optimum(setting: PaperSetting, seed: int) -> dict[str, float]:
    """Welfare of the best plans found, the bound that none exceeds, and the gap between them: of the auction
    with nothing declared."""
    instance = _undeclared(setting, seed)
    solution = offline_optimum(instance, TIME_LIMIT_S, RELATIVE_GAP)
    return {
        "welfare_micros": solution.welfare_micros,
        "bound_micros": solution.bound_micros,
        # Infinite where no plan was found, which JSON cannot say.
        "gap": min(solution.gap, 1e9),
        "wall_s": solution.seconds,
        "bids": len(instance.tasks),
    }


def measure_clearing_bound(setting: PaperSetting, seed: int) -> dict[str, float]:
    """What no plans of the auction with nothing declared exceed, by the prices that clear the day's market:
    the value of a point of the dual."""
    return {"bound_micros": clearing_prices(_undeclared(setting, seed), ROUNDS).bound_micros}


def _undeclared(setting: PaperSetting, seed: int) -> Instance:
    cell, workload = draw(setting, seed)
    return hindsight_of(with_policy(cell, AuctionPolicy()), workload)
