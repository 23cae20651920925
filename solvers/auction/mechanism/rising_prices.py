"""Prices of node-slots that rise with every award (Eqs. 7 and 8), or stay at zero, for baselines.

The dual point consists of the present prices: they only rise, so each mu_i stays feasible (erratum P8).
"""

import math
from collections.abc import Set as AbstractSet
from typing import Any

from solvers.auction.market.carry_over import carry_over_prices
from solvers.auction.market.demand import Demand
from solvers.auction.market.market import Market, Placement
from solvers.auction.market.window import Window
from solvers.auction.mechanism.certificate import DualBound, least_additive_cost
from solvers.auction.mechanism.mechanism import PriceRises, Request
from solvers.auction.mechanism.prices import ClassPrice, Counted, Prices
from solvers.auction.mechanism.search import Schedule, best_schedule
from solvers.auction.mechanism.steepness import LearnedSteepness
from solvers.compiled import Floats


class RisingPrices:
    """See `Prices`. The prices are those of the market, per node-slot."""

    def __init__(
        self, market: Market, rises: PriceRises | None, steepness: LearnedSteepness | None = None
    ) -> None:
        """`steepness` replaces `rises` once it has learned enough; without either, prices do not rise."""
        self.dual_bound = DualBound()
        self._market = market
        self._declared = rises
        self._steepness = steepness
        self._open_until_slot = market.first_slot
        """First slot that no bid could use yet; the dual point may leave its node-slots at zero."""

    @property
    def bound_micros(self) -> int:
        return self.dual_bound.micros

    def advance(self) -> None:
        if self._steepness is not None:
            self._steepness.advance(self._market.first_slot)

    def count_bid(self, bid_micros: int, request: Request, window: Window | None) -> Counted:
        self._open(request.first_slot, request.last_slot)
        cost_micros = math.inf
        if window is not None:
            cost_micros = least_additive_cost(self._market, request.demand, window, cutoff_micros=bid_micros)
        return Counted(gain_micros=self.dual_bound.count_bid(bid_micros, cost_micros))

    def lost(self, counted: Counted) -> None:
        pass

    def rise(self, schedule: Schedule, demand: Demand, counted: Counted, welfare_micros: int) -> float:
        density_micros = self._density_micros(schedule, welfare_micros)
        self._raise(schedule.placement, demand, density_micros, welfare_micros - counted.gain_micros)
        return density_micros

    def awarded(self, schedule: Schedule, demand: Demand, bid_micros: int, counted: Counted) -> Counted:
        if self._steepness is not None:
            offer_micros = (bid_micros - schedule.vendor_micros) / demand.least_node_slots()
            welfare_micros = bid_micros - schedule.vendor_micros - schedule.operational_micros
            density_micros = self._density_micros(schedule, welfare_micros)
            self._steepness.count_award(offer_micros, density_micros, self._opening_micros(schedule))
        return counted

    def withdrawn(self, counted: Counted) -> None:
        """Keep the prices that the bid raised: they never fall."""
        self.dual_bound.take_back(counted.gain_micros)

    def released(self, placement: Placement, demand: Demand) -> None:
        """Change nothing: a plan has paid for its node-slots by the rise of their prices."""

    def replan(
        self,
        demand: Demand,
        window: Window,
        priced: AbstractSet[tuple[int, int]],
        density_micros: float,
        budget_steps: int,
    ) -> Schedule | None:
        """Return the cheapest plan. A baseline's prices are zero, so its tasks move to the node-slots of
        least operational cost.

        A task raises each node-slot only once: otherwise an unstable node would raise prices without any
        demand.
        """
        schedule = best_schedule(self._market, demand, window, room_only=True, budget_steps=budget_steps)
        if schedule is None:
            return None
        self._market.reserve(schedule.placement, demand)
        fresh = [node_slot for node_slot in schedule.placement.node_slots() if node_slot not in priced]
        added = Placement(tuple(slot for slot, _ in fresh), tuple(row for _, row in fresh))
        self._raise(added, demand, density_micros, at_least_micros=0)
        return schedule

    @property
    def basis(self) -> None:
        return None

    def of_class(self, index: int) -> ClassPrice:
        node_class = self._market.fleet.classes[index]
        rows = slice(node_class.start, node_class.stop)
        compute, memory = self._market.compute_price[:, rows], self._market.memory_price[:, rows]
        return ClassPrice(_mean(compute), float(compute.max()), _mean(memory), float(memory.max()))

    def take_over(self, before: Prices) -> None:
        """Take over earlier prices. The bound then holds for the nodes, capacities and costs that each bid
        could use when it was counted.

        After prices of another kind, these start again: later bids are bounded separately, and earlier bids
        keep their bound.
        """
        self.dual_bound.micros = before.bound_micros
        if not isinstance(before, RisingPrices):
            return
        rises = carry_over_prices(before._market, self._market, before._open_until_slot)
        self.dual_bound.rise(rises, at_least_micros=0)
        # Slots that a shorter window leaves out are added again later, and count again.
        self._open_until_slot = min(
            before._open_until_slot, self._market.first_slot + self._market.horizon_slots
        )
        if self._steepness is not None and before._steepness is not None:
            self._steepness.restore(before._steepness.state())

    def state(self) -> dict[str, Any]:
        return {
            # Amounts may exceed 64 bits over the years, so they are written as text.
            "dual_bound_micros": str(self.dual_bound.micros),
            "open_until_slot": self._open_until_slot,
            "steepness": self._steepness and self._steepness.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.dual_bound.micros = int(state["dual_bound_micros"])
        self._open_until_slot = state["open_until_slot"]
        if self._steepness is not None:
            self._steepness.restore(state["steepness"])

    def _open(self, first_slot: int, last_slot: int) -> None:
        """Add the opening prices of slots that no earlier bid could use to the dual point."""
        first = max(self._open_until_slot, first_slot)
        stop = min(last_slot + 1, self._market.first_slot + self._market.horizon_slots)
        if stop > first:
            self.dual_bound.rise(self._market.opening_sums(first, stop - first), at_least_micros=0)
            self._open_until_slot = stop

    def _density_micros(self, schedule: Schedule, welfare_micros: int) -> float:
        """Return b-bar_il, clipped to the bound that prices follow."""
        density_micros = welfare_micros / (schedule.compute_used + schedule.memory_used)
        return (
            density_micros
            if self._declared is None
            else min(density_micros, self._declared.max_density_micros)
        )

    def _opening_micros(self, schedule: Schedule) -> float:
        """Return the mean price of the node-slots of a schedule when they were empty."""
        slot, row = next(schedule.placement.node_slots())
        compute = self._market.opening_compute_price(slot, 1)[0, row] * schedule.compute_used
        memory = self._market.opening_memory_price(slot, 1)[0, row] * schedule.memory_used
        return float((compute + memory) / (schedule.compute_used + schedule.memory_used))

    def _raise(
        self, placement: Placement, demand: Demand, density_micros: float, at_least_micros: int
    ) -> None:
        rises = self._declared if self._steepness is None else self._steepness.rises()
        if rises is not None:
            self.dual_bound.rise(
                self._market.raise_prices(placement, demand, density_micros, rises.alpha, rises.beta),
                at_least_micros,
            )


def _mean(prices: Floats) -> float:
    return math.fsum(prices.ravel().tolist()) / prices.size
