"""Algorithm 1: judge each bid on arrival, admit it if and only if it is above its price, and raise the
prices.

A `Mechanism`, pdFTSP's or a baseline's, determines how a plan is found, what it costs and whether prices
rise.
"""

import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from solvers.auction.market.carry_over import carry_over
from solvers.auction.market.demand import Demand
from solvers.auction.market.market import Market, Placement
from solvers.auction.market.window import (
    Binding,
    RoomCount,
    VendorOption,
    Window,
    binding,
    earliest_last_slot,
    room_for,
)
from solvers.auction.mechanism.certificate import DualBound, Welfare, least_additive_cost
from solvers.auction.mechanism.mechanism import Charge, Mechanism, Price, PriceRises, Request
from solvers.auction.mechanism.search import Schedule, best_schedule, describe
from solvers.auction.mechanism.steepness import LearnedSteepness


@dataclass(frozen=True)
class Appraisal:
    """What the market says of a task, whatever is bid for it."""

    schedule: Schedule | None
    """The mechanism's plan; pdFTSP's is the best (Eq. 9)."""
    price: Price | None
    """What a bid must be above; None without a plan."""
    window: Window | None
    """The request's part of the market; None where even an empty one could not do the work in time."""
    room: RoomCount
    binding: Binding
    earliest_last_slot: int | None


@dataclass(frozen=True)
class Award:
    """What an admitted bid gets."""

    schedule: Schedule
    charge: Charge
    density_micros: float
    """b-bar_il: welfare per normalised resource."""
    gain_micros: int
    """mu_il: what the bid added to the dual bound besides its rises of prices."""
    welfare_micros: int
    """What the plan is worth: the bid less the vendor's price and the operational cost."""


class Auctioneer:
    """The auction of one zone: its market, its welfare, and the bound that proves how good that is."""

    def __init__(
        self, market: Market, mechanism: Mechanism, steepness: LearnedSteepness | None = None
    ) -> None:
        """`steepness` replaces the mechanism's own rises of prices once it has learned enough."""
        self.market = market
        self.mechanism = mechanism
        self.dual_bound = DualBound()
        self.welfare = Welfare()
        self._steepness = steepness
        self._open_until_slot = market.first_slot
        """The first slot that no bid could use yet, so that the dual point may leave its node-slots at
        zero."""

    def advance(self, first_slot: int) -> None:
        """Let the market's window begin at `first_slot`."""
        self.market.advance(first_slot)
        if self._steepness is not None:
            self._steepness.advance(first_slot)

    def take_over(self, before: "Auctioneer") -> None:
        """Go on where another auctioneer of the zone was, whose nodes, window or settings were others.

        The bound then holds for what each bid could use when it was judged: the nodes, their capacities and
        their costs as they were.
        """
        self.dual_bound.micros = before.dual_bound.micros
        self.welfare.restore(before.welfare.state())
        rises = carry_over(before.market, self.market, before._open_until_slot)
        self.dual_bound.rise(rises, at_least_micros=0)
        # What a shorter window leaves out comes in anew, and counts anew.
        self._open_until_slot = min(
            before._open_until_slot, self.market.first_slot + self.market.horizon_slots
        )
        if self._steepness is not None and before._steepness is not None:
            self._steepness.restore(before._steepness.state())

    def appraise(self, request: Request) -> Appraisal:
        """Find the plan for a task, or why there is none. Changes nothing and does not depend on the bid."""
        window = self._window(request)
        schedule = None if window is None else self.mechanism.plan(self.market, request, window)
        return self._appraisal(request, window, schedule)

    def appraise_plan(self, request: Request, schedule: Schedule | None) -> Appraisal:
        """As `appraise`, of a plan that was sought elsewhere, or of none."""
        return self._appraisal(request, self._window(request), schedule)

    def decide(self, bid_micros: int, request: Request, appraisal: Appraisal) -> Award | None:
        """Admit a bid iff it is above its price (for pdFTSP: F(il) = bid - critical value > 0), and then take
        its room and raise its prices.

        The plan and the price are the appraisal's, so neither depends on the bid: that is what makes the
        auction truthful (Theorem 3, erratum P1).
        """
        gain_micros = self.judge(bid_micros, request, appraisal)
        schedule, price = appraisal.schedule, appraisal.price
        if schedule is None or price is None or bid_micros <= price.micros:
            return None
        return self.award(bid_micros, request.demand, schedule, price, gain_micros)

    def judge(self, bid_micros: int, request: Request, appraisal: Appraisal) -> int:
        """Count a bid among those that the certificate is for, and return mu_il in micros."""
        self._open(request.first_slot, request.last_slot)
        window, cost_micros = appraisal.window, math.inf
        if window is not None:
            cost_micros = least_additive_cost(self.market, request.demand, window, cutoff_micros=bid_micros)
        return self.dual_bound.judge(bid_micros, cost_micros)

    def award(
        self, bid_micros: int, demand: Demand, schedule: Schedule, price: Price, gain_micros: int
    ) -> Award | None:
        """Give a bid its schedule; None where there is no room for it.

        Args:
            gain_micros: mu_il, which the bid has added to the dual bound already.
        """
        welfare = bid_micros - schedule.vendor_micros - schedule.operational_micros
        density = self._density_micros(welfare, schedule)
        self._raise_prices(schedule.placement, demand, density, at_least_micros=welfare - gain_micros)
        if not self.market.has_room(schedule.placement, demand):
            # Of schedules just found, only the published order's get here: prices are raised for a task that
            # is refused (erratum P2).
            return None
        self.market.reserve(schedule.placement, demand)
        self.welfare.planned_micros += welfare
        if self._steepness is not None:
            offer_micros = (bid_micros - schedule.vendor_micros) / demand.least_node_slots()
            self._steepness.note_award(offer_micros, density, self._opening_micros(schedule))
        return Award(schedule, self.mechanism.charge(price), density, gain_micros, welfare)

    def replan(
        self,
        demand: Demand,
        priced: AbstractSet[tuple[int, int]],
        density_micros: float,
        first_slot: int,
        last_slot: int,
        budget_steps: int,
    ) -> Schedule | None:
        """Plan the rest of an admitted task again, at no charge to its user.

        The plan is the cheapest there is, whatever the mechanism: a baseline's prices are zero, so its tasks
        are moved to where operation costs least.

        Args:
            demand: for the work that remains; what it held before is given up.
            priced: (slot, row) of the node-slots whose prices the task has raised already. It raises each
                only once, or a node that comes and goes would drive prices up without any demand.
            density_micros: b-bar_il of the task's award.
            budget_steps: see `best_schedule`.

        Returns:
            The new schedule, its room taken; None if there is none.
        """
        options = [VendorOption(None, 0, 0)]
        window = Window.of(self.market, demand, options, first_slot, last_slot)
        schedule = (
            None
            if window is None
            else best_schedule(self.market, demand, window, room_only=True, budget_steps=budget_steps)
        )
        if schedule is None:
            return None
        self.market.reserve(schedule.placement, demand)
        fresh = [node_slot for node_slot in schedule.placement.node_slots() if node_slot not in priced]
        added = Placement(tuple(slot for slot, _ in fresh), tuple(row for _, row in fresh))
        self._raise_prices(added, demand, density_micros, at_least_micros=0)
        return schedule

    def operational_micros(self, demand: Demand, placement: Placement) -> int:
        """What a placement within the window costs to run."""
        if not placement.slots:
            return 0
        return describe(self.market, demand, VendorOption(None, 0, 0), placement).operational_micros

    def state(self) -> dict[str, Any]:
        """Everything that changes, of types that msgpack writes."""
        return {
            "market": self.market.state(),
            # Amounts may outgrow 64 bits over the years, so they travel as text.
            "dual_bound_micros": str(self.dual_bound.micros),
            "welfare": self.welfare.state(),
            "open_until_slot": self._open_until_slot,
            "steepness": self._steepness and self._steepness.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state of an auctioneer of an equal zone."""
        self.market.restore(state["market"])
        self.dual_bound.micros = int(state["dual_bound_micros"])
        self.welfare.restore(state["welfare"])
        self._open_until_slot = state["open_until_slot"]
        if self._steepness is not None:
            self._steepness.restore(state["steepness"])

    def _open(self, first_slot: int, last_slot: int) -> None:
        """Add the opening prices of the slots that no bid before could use to the dual point."""
        first = max(self._open_until_slot, first_slot)
        stop = min(last_slot + 1, self.market.first_slot + self.market.horizon_slots)
        if stop > first:
            self.dual_bound.rise(self.market.opening_sums(first, stop - first), at_least_micros=0)
            self._open_until_slot = stop

    def _opening_micros(self, schedule: Schedule) -> float:
        """What the node-slots of a schedule cost per node-slot before anything was taken of them."""
        slot, row = next(schedule.placement.node_slots())
        compute = self.market.opening_compute_price(slot, 1)[0, row] * schedule.compute_used
        memory = self.market.opening_memory_price(slot, 1)[0, row] * schedule.memory_used
        return float((compute + memory) / (schedule.compute_used + schedule.memory_used))

    def _rises(self) -> PriceRises | None:
        return self.mechanism.price_rises if self._steepness is None else self._steepness.rises()

    def _density_micros(self, welfare_micros: int, schedule: Schedule) -> float:
        density = welfare_micros / (schedule.compute_used + schedule.memory_used)
        rises = self.mechanism.price_rises
        return density if rises is None else min(density, rises.max_density_micros)

    def _raise_prices(
        self, placement: Placement, demand: Demand, density_micros: float, at_least_micros: int
    ) -> None:
        rises = self._rises()
        if rises is not None:
            self.dual_bound.rise(
                self.market.raise_prices(placement, demand, density_micros, rises.alpha, rises.beta),
                at_least_micros,
            )

    def _window(self, request: Request) -> Window | None:
        return Window.of(self.market, request.demand, request.options, request.first_slot, request.last_slot)

    def _appraisal(self, request: Request, window: Window | None, schedule: Schedule | None) -> Appraisal:
        demand, first_slot, last_slot = request.demand, request.first_slot, request.last_slot
        room = room_for(self.market, demand, first_slot, last_slot)
        slots = last_slot - max(first_slot, self.market.first_slot) + 1
        return Appraisal(
            schedule=schedule,
            price=None if schedule is None else self.mechanism.price(schedule, demand.work_samples),
            window=window,
            room=room,
            binding=binding(demand, room, slots, found=schedule is not None),
            earliest_last_slot=earliest_last_slot(self.market, demand, request.options),
        )
