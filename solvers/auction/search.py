"""The best schedule of one task: vendor, slots and nodes (Algorithm 2, with errata P1 to P3)."""

import math
from dataclasses import dataclass

import numpy as np

from solvers.auction.ceilings import cheapest_schedule, minimal_counts
from solvers.auction.cells import price_fronts
from solvers.auction.cover import NO_CHOICE
from solvers.auction.demand import Demand
from solvers.auction.market import Market, Placement
from solvers.auction.window import VendorOption, Window


@dataclass(frozen=True)
class Schedule:
    """A plan and its price, whoever pays it: nothing here depends on a bid."""

    vendor: str | None
    vendor_micros: int
    operational_micros: int
    compute_ceiling_micros: float
    """Highest compute price among the plan's cells, per node-slot."""
    memory_ceiling_micros: float
    compute_used: float
    """Node-slots of compute."""
    memory_used: float
    """Node-slots of memory."""
    samples: int
    placement: Placement

    @property
    def compute_micros(self) -> float:
        """What the plan's compute costs."""
        return self.compute_ceiling_micros * self.compute_used

    @property
    def memory_micros(self) -> float:
        """What the plan's memory costs."""
        return self.memory_ceiling_micros * self.memory_used

    @property
    def critical_micros(self) -> float:
        """q + e + resource prices: the bid wins iff it is higher (erratum P1)."""
        return math.fsum(
            (self.vendor_micros, self.operational_micros, self.compute_micros, self.memory_micros)
        )

    @property
    def lowest_winning_bid_micros(self) -> int:
        """The least whole bid above the critical value."""
        return math.floor(self.critical_micros) + 1


def best_schedule(market: Market, demand: Demand, window: Window, room_only: bool) -> Schedule | None:
    """The schedule that maximises F(il) for any bid: the one of least critical value, or None without one.

    With `room_only` it uses cells with room alone (erratum P2).
    """
    free_samples, free_gib, node_up = market.room() if room_only else market.emptied()
    fronts = price_fronts(
        market.compute_price[window.columns],
        market.memory_price[window.columns],
        free_samples[window.columns],
        free_gib[window.columns],
        node_up,
        market.class_bounds,
        demand.samples,
        demand.memory_gib,
    )
    counts = minimal_counts(demand.samples, demand.work_samples, window.slots)
    best, best_cost = None, math.inf
    rows, least = None, 0.0
    for option in window.options:
        if option.price_micros + least >= best_cost:
            continue
        # A schedule that is cheapest with less delay stays so with more, as long as it starts late enough.
        if rows is None or (rows[: option.delay_slots] != NO_CHOICE).any():
            cost, found = cheapest_schedule(
                *fronts,
                window.operational,
                demand.samples,
                demand.compute_share,
                demand.memory_share,
                counts,
                window.sums,
                window.following,
                demand.work_samples,
                option.delay_slots,
                best_cost - option.price_micros,
            )
            if cost == math.inf:
                rows = None
                continue
            rows, least = found, cost
        best, best_cost = (option, rows), option.price_micros + least
    if best is None:
        return None
    option, rows = best
    columns = np.flatnonzero(rows != NO_CHOICE)
    begin = market.first_slot + window.columns.start
    placement = Placement(
        slots=tuple(int(column) + begin for column in columns), rows=tuple(int(rows[c]) for c in columns)
    )
    return describe(market, demand, option, placement)


def describe(market: Market, demand: Demand, option: VendorOption, placement: Placement) -> Schedule:
    """What a placement costs at the market's present prices."""
    operational = market.operational(demand)
    classes = [market.fleet.class_of_row[row] for row in placement.rows]
    columns = [slot - market.first_slot for slot in placement.slots]
    return Schedule(
        vendor=option.vendor,
        vendor_micros=option.price_micros,
        operational_micros=int(math.fsum(operational[columns, classes].tolist())),
        compute_ceiling_micros=float(market.compute_price[columns, placement.rows].max()),
        memory_ceiling_micros=float(market.memory_price[columns, placement.rows].max()),
        compute_used=math.fsum(demand.compute_share[classes].tolist()),
        memory_used=math.fsum(demand.memory_share[classes].tolist()),
        samples=int(demand.samples[classes].sum()),
        placement=placement,
    )
