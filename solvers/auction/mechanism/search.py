"""Search for the best schedule of one task: vendor, slots and nodes (Algorithm 2, with errata P1 to P3)."""

import math
from typing import NamedTuple

from solvers.auction.market.demand import Demand
from solvers.auction.market.market import Market, Placement, placement_of
from solvers.auction.market.node_slots import NodeSlots
from solvers.auction.market.placements import uses
from solvers.auction.market.window import VendorOption, Window
from solvers.auction.mechanism.ceilings import FoundSchedule, cheapest_schedule, schedule_problem
from solvers.compiled import Floats, Ints, kernel

SEARCH_BUDGET_STEPS = 4_000_000
"""Budget of one search for a schedule: a rule of the auction, since decisions follow from it. Steps are slots
times classes of every box, combinations of counts, and labels of covers."""


class Schedule(NamedTuple):
    """Plan and its price, independent of the bid."""

    vendor: str | None
    vendor_micros: int
    vendor_delay_slots: int
    operational_micros: int
    compute_micros: float
    """Cost of compute: for pdFTSP all of it at the highest compute price of its node-slots."""
    memory_micros: float
    """Cost of memory, likewise."""
    compute_used: float
    """Node-slots of compute."""
    memory_used: float
    """Node-slots of memory."""
    samples: int
    placement: Placement
    gap_micros: float | None = None
    """Bound on the saving by another plan: 0 if this one is proven optimal. None without such a search."""
    search_steps: int = 0
    """Steps of the search, of its budget."""

    @property
    def critical_micros(self) -> float:
        """Critical value q + e + resource prices: the bid wins iff it is higher (erratum P1)."""
        return math.fsum(
            (self.vendor_micros, self.operational_micros, self.compute_micros, self.memory_micros)
        )


def best_schedule(
    market: Market, demand: Demand, window: Window, room_only: bool, budget_steps: int = SEARCH_BUDGET_STEPS
) -> Schedule | None:
    """Return the schedule that maximises F(il) for any bid, the one of least critical value, or None.

    If the budget of steps runs out first, it is the best one found, and `Schedule.gap_micros` bounds the
    saving by another. The result depends neither on a bid nor on time: the search ends at the same step on
    every machine. With `room_only` it uses only node-slots with room (erratum P2).
    """
    start, stop = window.columns.start, window.columns.stop
    node_slots = market.node_slots(start, stop) if room_only else market.emptied_node_slots(start, stop)
    found = _best_schedule(
        node_slots, demand, window.operational, window.delays_slots, window.prices_micros, budget_steps
    )
    if found.option < 0:
        return None
    placement = placement_of(found.rows, market.first_slot + start)
    schedule = describe(market, demand, window.options[found.option], placement)
    return schedule._replace(gap_micros=found.cost - found.bound, search_steps=found.steps)


@kernel
def _best_schedule(
    node_slots: NodeSlots,
    demand: Demand,
    operational: Floats,
    delays_slots: Ints,
    prices_micros: Floats,
    budget_steps: int,
) -> FoundSchedule:
    problem = schedule_problem(node_slots, demand, operational, delays_slots, prices_micros)
    return cheapest_schedule(problem, budget_steps)


def describe(market: Market, demand: Demand, option: VendorOption, placement: Placement) -> Schedule:
    """Return the schedule of a placement at the market's present prices."""
    used = uses(
        market.locate(placement), demand, market.full_costs, market.compute_price, market.memory_price
    )
    compute_used = math.fsum(used.compute_shares.tolist())
    memory_used = math.fsum(used.memory_shares.tolist())
    return Schedule(
        vendor=option.vendor,
        vendor_micros=option.price_micros,
        vendor_delay_slots=option.delay_slots,
        operational_micros=int(math.fsum(used.operational.tolist())),
        compute_micros=used.compute_price * compute_used,
        memory_micros=used.memory_price * memory_used,
        compute_used=compute_used,
        memory_used=memory_used,
        samples=used.samples,
        placement=placement,
    )
