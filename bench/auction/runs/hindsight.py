"""A day of a setting as problem P in hindsight, without the day having been run."""

from collections.abc import Iterator

from bench.workloads.paper import PaperSetting, draw
from schemas.clock import ClockTicked
from schemas.registry import Event
from solvers.auction.hindsight import instances_of
from solvers.auction.instance import Instance


def hindsight_of(setting: PaperSetting, seed: int) -> Instance:
    """The instance that any contender's ledger of this day makes: executors' reports say nothing of it."""
    (instance,) = instances_of(_events(setting, seed)).values()
    return instance


def _events(setting: PaperSetting, seed: int) -> Iterator[Event]:
    """Configuration, quotes, and the bids in the order of their times, each after the tick of its slot."""
    cell, workload = draw(setting, seed)
    yield cell
    yield from workload.quotes
    time_s = -1.0
    for timed in workload.bids:
        if timed.time_s > time_s:
            time_s = timed.time_s
            yield ClockTicked(cell=cell.cell, time_s=time_s)
        yield timed.bid
