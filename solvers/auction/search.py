"""The best schedule of one task: vendor, slots and nodes (Algorithm 2, with errata P1 to P3)."""

import math
from dataclasses import dataclass

import numpy as np

from solvers.arrays import Floats, Ints
from solvers.auction.ceilings import cheapest_schedule, schedule_problem
from solvers.auction.cells import Cells
from solvers.auction.cover import NO_CHOICE, Sums
from solvers.auction.demand import Demand
from solvers.auction.market import Market, Placement, placement_of
from solvers.auction.window import VendorOption, Window
from solvers.compiled import kernel


@dataclass(frozen=True)
class Schedule:
    """A plan and its price, whoever pays it: nothing here depends on a bid."""

    vendor: str | None
    vendor_micros: int
    vendor_delay_slots: int
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


def best_schedule(market: Market, demand: Demand, window: Window, room_only: bool) -> Schedule | None:
    """The schedule that maximises F(il) for any bid: the one of least critical value, or None without one.

    With `room_only` it uses cells with room alone (erratum P2).
    """
    start, stop = window.columns.start, window.columns.stop
    cells = market.cells(start, stop) if room_only else market.emptied_cells(start, stop)
    chosen, rows = _best_option(
        cells, demand, window.operational, window.sums, window.delays_slots, window.prices_micros
    )
    if chosen < 0:
        return None
    placement = placement_of(rows, market.first_slot + start)
    return describe(market, demand, window.options[chosen], placement)


@kernel
def _best_option(
    cells: Cells, demand: Demand, operational: Floats, sums: Sums, delays_slots: Ints, prices_micros: Floats
) -> tuple[int, Ints]:
    """The vendor and the node rows of the cheapest schedule; vendor -1 if there is none."""
    problem = schedule_problem(cells, demand, operational)
    best, best_cost = -1, np.inf
    best_rows = rows = np.full(operational.shape[0], NO_CHOICE, np.int64)
    known, least = False, 0.0
    for option in range(delays_slots.size):
        if prices_micros[option] + least >= best_cost:
            continue
        # A schedule that is cheapest with less delay stays so with more, as long as it starts late enough.
        if not known or (rows[: delays_slots[option]] != NO_CHOICE).any():
            cutoff = best_cost - prices_micros[option]
            cost, found = cheapest_schedule(problem, sums, delays_slots[option], cutoff)
            known = cost < np.inf
            if not known:
                continue
            rows, least = found, cost
        best, best_rows, best_cost = option, rows, prices_micros[option] + least
    return best, best_rows


def describe(market: Market, demand: Demand, option: VendorOption, placement: Placement) -> Schedule:
    """What a placement costs at the market's present prices."""
    columns, rows, classes = market.locate(placement)
    return Schedule(
        vendor=option.vendor,
        vendor_micros=option.price_micros,
        vendor_delay_slots=option.delay_slots,
        operational_micros=int(math.fsum(market.operational(demand)[columns, classes].tolist())),
        compute_ceiling_micros=float(market.compute_price[columns, rows].max()),
        memory_ceiling_micros=float(market.memory_price[columns, rows].max()),
        compute_used=math.fsum(demand.compute_share[classes].tolist()),
        memory_used=math.fsum(demand.memory_share[classes].tolist()),
        samples=int(demand.samples[classes].sum()),
        placement=placement,
    )
