"""Algorithm 1: judge each bid on arrival, admit it iff it beats the critical value, and raise the prices."""

import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from solvers.auction.certificate import DualBound, least_additive_cost
from solvers.auction.demand import Demand
from solvers.auction.market import Market, Placement
from solvers.auction.room import Binding, RoomCount, binding, earliest_last_slot, room_for
from solvers.auction.search import Schedule, best_schedule, describe
from solvers.auction.window import VendorOption, Window

PaymentRule = Literal["critical", "published"]
Order = Literal["room_first", "published"]


@dataclass(frozen=True)
class Pricing:
    """How prices rise and what winners pay."""

    payment: PaymentRule
    alpha: float
    """Factor of Eq. 7, from declared bounds (erratum P4)."""
    beta: float
    """Factor of Eq. 8, likewise."""
    max_density_micros: float = math.inf
    """The largest b-bar with which a bid raises prices."""
    order: Order = "room_first"
    """Whether room is minded before a plan is made (erratum P2), or after prices are raised, as printed."""


@dataclass(frozen=True)
class Appraisal:
    """What the market says of a task, whatever is bid for it."""

    schedule: Schedule | None
    """The best plan (Eq. 9)."""
    least_additive_cost: float
    """See the function of this name; infinite without any plan."""
    room: RoomCount
    binding: Binding
    earliest_last_slot: int | None


@dataclass(frozen=True)
class Award:
    """What an admitted bid gets."""

    schedule: Schedule
    payment_micros: int
    density_micros: float
    """b-bar_il: welfare per normalised resource, at most what the pricing allows."""
    gain_micros: int
    """mu_il: what the bid added to the dual bound besides its rises of prices."""


class Auctioneer:
    """The auction of one zone: its market, its welfare, and the bound that proves how good that is."""

    def __init__(self, market: Market, pricing: Pricing) -> None:
        self.market = market
        self.pricing = pricing
        self.dual_bound = DualBound()
        self.welfare_micros = 0
        """Objective 4, of the decisions so far."""

    def appraise(
        self, demand: Demand, options: list[VendorOption], first_slot: int, last_slot: int
    ) -> Appraisal:
        """Find the best plan of a task and what stands in its way. Changes nothing and knows no bid."""
        window = Window.of(self.market, demand, options, first_slot, last_slot)
        schedule = None
        if window is not None:
            room_only = self.pricing.order == "room_first"
            schedule = best_schedule(self.market, demand, window, room_only)
        room = room_for(self.market, demand, first_slot, last_slot)
        slots = last_slot - max(first_slot, self.market.first_slot) + 1
        return Appraisal(
            schedule=schedule,
            least_additive_cost=(
                math.inf if window is None else least_additive_cost(self.market, demand, window)
            ),
            room=room,
            binding=binding(demand, room, slots, found=schedule is not None),
            earliest_last_slot=earliest_last_slot(self.market, demand, options),
        )

    def decide(self, bid_micros: int, demand: Demand, appraisal: Appraisal) -> Award | None:
        """Admit a bid iff F(il) = bid - critical value > 0, and then take its room and raise its prices.

        The plan and the critical value are the appraisal's, so neither depends on the bid: that is what makes
        the auction truthful (Theorem 3, erratum P1).
        """
        gain_micros = self.dual_bound.judge(bid_micros, appraisal.least_additive_cost)
        schedule = appraisal.schedule
        if schedule is None or bid_micros <= schedule.critical_micros:
            return None
        welfare = bid_micros - schedule.vendor_micros - schedule.operational_micros
        density = min(
            welfare / (schedule.compute_used + schedule.memory_used), self.pricing.max_density_micros
        )
        self._raise_prices(schedule.placement, demand, density)
        if not self.market.has_room(schedule.placement, demand):
            # Only the published order gets here: prices are raised for a task that is refused (erratum P2).
            return None
        self.market.reserve(schedule.placement, demand)
        self.welfare_micros += welfare
        return Award(schedule, self._payment(schedule), density, gain_micros)

    def replan(
        self,
        demand: Demand,
        held: Placement,
        held_demand: Demand,
        priced: AbstractSet[tuple[int, int]],
        density_micros: float,
        first_slot: int,
        last_slot: int,
    ) -> Schedule | None:
        """Plan the rest of an admitted task again, at no charge to its user.

        Args:
            demand: for the work that remains.
            held, held_demand: the cells still held for it, and the demand that they were reserved with. They
                are given up first.
            priced: (slot, row) of the cells whose prices the task has raised already. It raises each only
                once, or a node that comes and goes would drive prices up without any demand.
            density_micros: b-bar_il of the task's award.

        Returns:
            The new schedule, its room taken; None, with `held` given up all the same, if there is none.
        """
        self.market.release(held, held_demand)
        options = [VendorOption(None, 0, 0)]
        window = Window.of(self.market, demand, options, first_slot, last_slot)
        schedule = None if window is None else best_schedule(self.market, demand, window, room_only=True)
        if schedule is None:
            return None
        self.market.reserve(schedule.placement, demand)
        fresh = [cell for cell in schedule.placement.cells() if cell not in priced]
        added = Placement(tuple(slot for slot, _ in fresh), tuple(row for _, row in fresh))
        self._raise_prices(added, demand, density_micros)
        return schedule

    def operational_micros(self, demand: Demand, placement: Placement) -> int:
        """What a placement within the window costs to run."""
        if not placement.slots:
            return 0
        return describe(self.market, demand, VendorOption(None, 0, 0), placement).operational_micros

    def _raise_prices(self, placement: Placement, demand: Demand, density_micros: float) -> None:
        self.dual_bound.rise(
            self.market.raise_prices(placement, demand, density_micros, self.pricing.alpha, self.pricing.beta)
        )

    def _payment(self, schedule: Schedule) -> int:
        if self.pricing.payment == "critical":
            return math.ceil(schedule.critical_micros)
        # Eq. 14 as printed: without the operational cost, and not truthful (erratum P1).
        return math.ceil(math.fsum((schedule.vendor_micros, schedule.compute_micros, schedule.memory_micros)))
