"""Rules of pdFTSP: the plan of least critical value, the payment of winners, and Algorithm 2 as printed."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from solvers.auction.market.demand import Demand
from solvers.auction.market.market import Market, placement_of
from solvers.auction.market.node_slots import Fronts, price_fronts
from solvers.auction.market.window import Window
from solvers.auction.mechanism.counts import NO_CHOICE
from solvers.auction.mechanism.mechanism import Charge, Price, Request
from solvers.auction.mechanism.search import SEARCH_BUDGET_STEPS, Schedule, best_schedule, describe
from solvers.compiled import Floats, Ints, kernel

MAX_TABLE_ENTRIES = 4_000_000
"""Most entries: slots times sums of samples, 8 bytes each."""
MAX_TABLE_STEPS = 100_000_000
"""Most steps: sums times the node-slots examined, for each delay of a vendor."""

PaymentRule = Literal["critical", "published"]
Order = Literal["room_first", "published"]
Search = Literal["exact", "published"]


class Sums(NamedTuple):
    """Sums of samples below the work that a plan may pass through."""

    values: Ints
    """Sums, ascending, from 0."""
    following: Ints
    """Index of each sum after the samples of a slot of a class are added, (classes, sums). Where the work is
    then done, it is the number of sums."""


def published_schedule(market: Market, request: Request, window: Window, room_only: bool) -> Schedule | None:
    """Return the plan that Algorithm 2 finds, or None. Its critical value is at least that of the best plan.
    Every vendor is tried, even if another one is cheaper and faster, since a later start may avoid a mistake
    of the table. With `room_only`, only node-slots with room are used (erratum P2).
    """
    start, stop = window.columns.start, window.columns.stop
    node_slots = market.node_slots(start, stop) if room_only else market.emptied_node_slots(start, stop)
    fronts = price_fronts(node_slots, request.demand)
    delays = {option.delay_slots for option in request.options if option.delay_slots < window.slots}
    sums = _table(request.demand, window.slots)
    if sums is None or sums.values.size * fronts.compute.size * len(delays) > MAX_TABLE_STEPS:
        return best_schedule(market, request.demand, window, room_only)
    best, best_cost = None, np.inf
    found: dict[int, tuple[float, Ints]] = {}
    for option in request.options:
        delay = option.delay_slots
        if delay >= window.slots:
            continue
        if delay not in found:
            found[delay] = _running_maximum(fronts, request.demand, window.operational, sums, delay)
        cost, rows = found[delay]
        if option.price_micros + cost < best_cost:
            best, best_cost = (option, rows), option.price_micros + cost
    if best is None:
        return None
    option, rows = best
    return describe(market, request.demand, option, placement_of(rows, market.first_slot + start))


def _table(demand: Demand, slots: int) -> Sums | None:
    """Return the sums of the table, or None if it is too large."""
    most = slots * math.prod(
        min(slots, demand.work_samples // step) + 1 for step in {int(step) for step in demand.samples if step}
    )
    return None if most > MAX_TABLE_ENTRIES else _sums_below(demand.samples, demand.work_samples, slots)


@kernel
def _sums_below(samples: Ints, work_samples: int, slots: int) -> Sums:
    """Return the sums below `work_samples` of at most `slots` times each entry of `samples`."""
    sums = _reachable_sums(samples, work_samples, slots)
    return Sums(sums, _transitions(sums, samples))


@kernel
def _reachable_sums(samples: Ints, work_samples: int, slots: int) -> Ints:
    sums = np.zeros(1, np.int64)
    for index in range(samples.size):
        step = samples[index]
        repeated = False
        for other in range(index):
            repeated = repeated or samples[other] == step
        if step == 0 or repeated:
            continue
        most = min(slots, (work_samples - 1) // step)
        grown = np.empty(sums.size * (most + 1), np.int64)
        count = 0
        for base in sums:
            total = base
            for _ in range(most + 1):
                if total >= work_samples:
                    break
                grown[count] = total
                count += 1
                total += step
        sums = np.unique(grown[:count])
    return sums


@kernel
def _transitions(sums: Ints, samples: Ints) -> Ints:
    # A sum that needs too many slots is missing in `sums` and counts as enough: no cover reaches it.
    following = np.empty((samples.size, sums.size), np.int64)
    for index in range(samples.size):
        place = 0
        for state in range(sums.size):
            target = sums[state] + samples[index]
            while place < sums.size and sums[place] < target:
                place += 1
            found = place < sums.size and sums[place] == target
            following[index, state] = place if found else sums.size
    return following


@kernel
def _relaxed(costs: Floats, samples: Ints, rate: float) -> tuple[float, int]:
    """Return cost and samples of the relaxed cover at a rate: node-slots of negative reduced cost."""
    total, scheduled = 0.0, 0
    for slot in range(costs.shape[0]):
        least, by = 0.0, -1
        for index in range(samples.size):
            reduced = costs[slot, index] - rate * samples[index]
            if reduced < least:
                least, by = reduced, index
        if by >= 0:
            total += costs[slot, by]
            scheduled += samples[by]
    return total, scheduled


@kernel
def _running_maximum(
    fronts: Fronts, demand: Demand, operational: Floats, sums: Sums, first_slot: int
) -> tuple[float, Ints]:
    """Return the result of the table from `first_slot` on: the cost of the work, or infinity, and node rows.

    For each class, node-slots are skipped if another one is lower in both prices: Delta_kt rises with both,
    whatever the maxima so far.
    """
    slots, classes = operational.shape
    enough = sums.values.size
    cost = np.full(enough + 1, np.inf)
    # Path to each state: highest prices, node-slots, and operational cost.
    compute_price, memory_price = np.zeros(enough + 1), np.zeros(enough + 1)
    compute_used, memory_used = np.zeros(enough + 1), np.zeros(enough + 1)
    spent = np.zeros(enough + 1)
    cost[0] = 0.0
    came_from = np.full((slots, enough + 1), -1, np.int32)
    came_by = np.full((slots, enough + 1), NO_CHOICE, np.int32)
    for slot in range(first_slot, slots):
        # Sums are updated from the largest down. A step only leads to larger sums, so each slot is used once.
        for state in range(enough - 1, -1, -1):
            if cost[state] == np.inf:
                continue
            for index in range(classes):
                group = slot * classes + index
                for node_slot in range(fronts.start[group], fronts.start[group + 1]):
                    highest_compute = max(compute_price[state], fronts.compute[node_slot])
                    highest_memory = max(memory_price[state], fronts.memory[node_slot])
                    compute = compute_used[state] + demand.compute_share[index]
                    memory = memory_used[state] + demand.memory_share[index]
                    operation = spent[state] + operational[slot, index]
                    grown = operation + highest_compute * compute + highest_memory * memory
                    target = sums.following[index, state]
                    if grown < cost[target]:
                        cost[target], spent[target] = grown, operation
                        compute_price[target], memory_price[target] = highest_compute, highest_memory
                        compute_used[target], memory_used[target] = compute, memory
                        came_from[slot, target], came_by[slot, target] = state, fronts.nodes[node_slot]
    rows = np.full(slots, NO_CHOICE, np.int64)
    if cost[enough] < np.inf:
        state = enough
        for slot in range(slots - 1, first_slot - 1, -1):
            if came_from[slot, state] >= 0:
                rows[slot] = came_by[slot, state]
                state = came_from[slot, state]
    return float(cost[enough]), rows


@dataclass(frozen=True)
class PrimalDual:
    """See `Mechanism`."""

    payment: PaymentRule
    order: Order = "room_first"
    """Time of the check of room: before a plan is made (erratum P2), or, as printed, after prices are
    raised."""
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
