"""Prices of node-slots that rise with every award (Eqs. 7 and 8), or stay at zero, for baselines.

The dual point consists of the present prices: they only rise, so each mu_i stays feasible (erratum P8).
"""

import math
from collections import Counter
from collections.abc import Set as AbstractSet
from typing import Any

from solvers.auction.density_classes import class_of, least_ratio_of
from solvers.auction.market.demand import Demand
from solvers.auction.market.market import Market, Placement, carry_over_prices
from solvers.auction.market.window import Window
from solvers.auction.mechanism.certificate import DualBound, least_additive_cost
from solvers.auction.mechanism.mechanism import ClassPrice, Counted, PriceRises, Prices, Request
from solvers.auction.mechanism.search import Schedule, best_schedule
from solvers.compiled import Floats

_REACHED_PART = 0.8
"""Part of the winners, from the highest offer down, whose least offer prices reach."""
_REACHED_PART_ALONE = 0.05
"""This part without declared bounds. alpha and beta are defined by the maximum; this is nearly the maximum,
without the one of an absurd winner."""
_MOST_DENSITY = 10.0
"""Largest b-bar by which a bid raises prices without declared bounds, as a multiple of the mean of earlier
winners."""
_LEAST_AWARDS = 20
"""Least awards; with fewer, the declared bounds are used."""
_FORGOTTEN_AWARDS = 2.0**-40
"""Number of awards, halved with each horizon, below which their mean is forgotten."""
_LEAST_STEEPNESS = 0.05
"""Least alpha and beta: even with high opening prices, a taken node-slot stays dearer than an empty one."""
_CLASSES_PER_OCTAVE = 8
"""Resolution of the classes of offers."""


class LearnedSteepness:
    """Steepness of prices, learned from earlier winners instead of a declared bound on bids (erratum P4).

    By Eqs. 7 and 8, a node-slot that is taken share by share, at a mean b-bar, ends (e - 1) alpha b-bar above
    e times its opening price. alpha and beta are chosen so that four fifths of the winners offered this price
    or more. If prices rose less, a node-slot would fill with bids worth less than later ones without room; if
    they rose more, it would stay half empty. Losing bids are ignored, since they cost nothing and could be
    arbitrary. No bid affects its own price, since a winner counts only for later bids. If node-slots open at
    zero, the first bid wins and winners reveal nothing, so the declared bounds are used.

    Without declared bounds, a full node-slot costs what one in twenty winners offered or exceeded, wherever
    it opens. Until there are enough awards, alpha = beta = 1: a full node-slot then costs e - 1 times the
    mean b-bar of its winners, in any unit of money.
    """

    def __init__(self, declared: PriceRises | None, memory_slots: int) -> None:
        """Make an empty record.

        Args:
            declared: parameters until there are enough awards; None if no bounds are declared.
            memory_slots: half-life of counted offers.
        """
        self._declared = declared
        self._memory_slots = memory_slots
        self._halved_slot = 0
        self._offers: Counter[int] = Counter()
        self._awards = 0.0
        self._award_micros = 0.0
        """Sum of the winners' b-bar."""
        self._opening_micros = 0.0
        """Sum of the opening prices of the winners' node-slots, per node-slot."""

    def rises(self) -> PriceRises:
        """Return the parameters of the rise of prices with the next award."""
        declared = self._declared
        is_known = self._awards >= _LEAST_AWARDS and self._award_micros > 0 and bool(self._offers)
        if declared is None and not is_known:
            return PriceRises(1.0, 1.0, self.most_density_micros())
        if declared is not None and not (is_known and self._opening_micros > 0):
            return declared
        missing_micros = self._reached_offer_micros() - math.e * self._opening_micros / self._awards
        steepness = max(missing_micros / ((math.e - 1) * self._award_micros / self._awards), _LEAST_STEEPNESS)
        return PriceRises(steepness, steepness, self.most_density_micros())

    def most_density_micros(self) -> float:
        """Return the largest b-bar by which an award raises prices: any without bounds and earlier
        winners."""
        if self._declared is not None:
            return self._declared.max_density_micros
        if self._awards < _FORGOTTEN_AWARDS or self._award_micros <= 0:
            return math.inf
        return _MOST_DENSITY * self._award_micros / self._awards

    def count_award(self, offer_micros: float, density_micros: float, opening_micros: float) -> None:
        """Count a winner.

        Args:
            offer_micros: its bid less its vendor's price, per node-slot on the class that needs the fewest.
            density_micros: its b-bar.
            opening_micros: mean price of its node-slots when they were empty.
        """
        self._offers[_class_of(min(offer_micros, self.most_density_micros()))] += 1
        self._awards += 1
        self._award_micros += density_micros
        self._opening_micros += opening_micros

    def advance(self, slot: int) -> None:
        """Let older offers fade as slots pass."""
        halvings = (slot - self._halved_slot) // self._memory_slots
        if halvings <= 0:
            return
        self._halved_slot += halvings * self._memory_slots
        self._offers = Counter({place: n >> halvings for place, n in self._offers.items() if n >> halvings})
        self._awards = math.ldexp(self._awards, -halvings)
        self._award_micros = math.ldexp(self._award_micros, -halvings)
        self._opening_micros = math.ldexp(self._opening_micros, -halvings)

    def state(self) -> dict[str, Any]:
        """Return the mutable state, in types that msgpack writes."""
        return {
            "halved_slot": self._halved_slot,
            "offers": sorted(self._offers.items()),
            "awards": [self._awards, self._award_micros, self._opening_micros],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._halved_slot = state["halved_slot"]
        self._offers = Counter(dict(state["offers"]))
        self._awards, self._award_micros, self._opening_micros = state["awards"]

    def _reached_offer_micros(self) -> float:
        """Return the least offer of the part of the winners with the highest offers."""
        left = self._offers.total() * (_REACHED_PART_ALONE if self._declared is None else _REACHED_PART)
        for place in sorted(self._offers, reverse=True):
            left -= self._offers[place]
            if left <= 0:
                return least_ratio_of(place, _CLASSES_PER_OCTAVE) if place else 0.0
        return 0.0


def _class_of(micros: float) -> int:
    """Return the class of an amount in whole micros; 0 for less than a micro."""
    whole = int(micros)
    return class_of(whole, _CLASSES_PER_OCTAVE) if whole > 0 else 0


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
        self.dual_bound.remove(counted.gain_micros)

    def released(self, placement: Placement, demand: Demand) -> None:
        """Change nothing: a plan has paid for its node-slots by the rise of their prices."""

    def replan(
        self,
        demand: Demand,
        window: Window,
        priced_slots: AbstractSet[tuple[int, int]],
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
        fresh = [node_slot for node_slot in schedule.placement.node_slots() if node_slot not in priced_slots]
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

    def of_node_slots(self) -> Floats:
        return self._market.compute_price + self._market.memory_price

    def inherit(self, before: Prices) -> None:
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
        if self._steepness is not None:
            return min(density_micros, self._steepness.most_density_micros())
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
