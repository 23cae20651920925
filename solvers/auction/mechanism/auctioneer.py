"""Algorithm 1: judge each bid on arrival, admit it if and only if it is above its price, and raise the
prices.

A `Mechanism`, pdFTSP's or a baseline's, determines how a plan is found and what it costs; `Prices` determine
how the prices of resources move.
"""

from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from solvers.auction.market.carry_over import carry_over_use
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
from solvers.auction.mechanism.certificate import Welfare
from solvers.auction.mechanism.mechanism import Charge, Mechanism, Price, Request
from solvers.auction.mechanism.prices import Basis, Counted, Prices
from solvers.auction.mechanism.search import Schedule, describe


class Appraisal(NamedTuple):
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
    basis: Basis | None
    """What the price was read off."""


class Award(NamedTuple):
    """What an admitted bid gets."""

    schedule: Schedule
    charge: Charge
    density_micros: float
    """b-bar_il: welfare per normalised resource, by which replanning raises prices."""
    counted: Counted
    """What the bid added to the certificate."""
    welfare_micros: int
    """What the plan is worth: the bid less the vendor's price and the operational cost."""


class Auctioneer:
    """The auction of one zone: its market, its welfare, and the bound that proves how good that is."""

    def __init__(self, market: Market, mechanism: Mechanism, prices: Prices) -> None:
        self.market = market
        self.mechanism = mechanism
        self.prices = prices
        self.welfare = Welfare()

    def advance(self, first_slot: int) -> None:
        """Let the market's window begin at `first_slot`."""
        self.market.advance(first_slot)
        self.prices.advance()

    def take_over(self, before: "Auctioneer") -> None:
        """Go on where another auctioneer of the zone was, whose nodes, window or settings were others."""
        self.welfare.restore(before.welfare.state())
        carry_over_use(before.market, self.market)
        self.prices.take_over(before.prices)

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
        counted = self.judge(bid_micros, request, appraisal)
        schedule, price = appraisal.schedule, appraisal.price
        if schedule is None or price is None or bid_micros <= price.micros:
            self.prices.lost(counted)
            return None
        return self.award(bid_micros, request.demand, schedule, price, counted)

    def judge(self, bid_micros: int, request: Request, appraisal: Appraisal) -> Counted:
        """Count a bid among those that the certificate is for."""
        return self.prices.judge(bid_micros, request, appraisal.window)

    def award(
        self, bid_micros: int, demand: Demand, schedule: Schedule, price: Price, counted: Counted
    ) -> Award | None:
        """Give a bid its schedule; None where there is no room for it.

        Args:
            counted: what the bid has added to the certificate already.
        """
        welfare = bid_micros - schedule.vendor_micros - schedule.operational_micros
        density = self.prices.rise(schedule, demand, counted, welfare)
        if not self.market.has_room(schedule.placement, demand):
            # Of schedules just found, only the published order's get here: prices are raised for a task that
            # is refused (erratum P2).
            return None
        self.market.hold(schedule.placement, demand)
        self.welfare.planned_micros += welfare
        counted = self.prices.awarded(schedule, demand, bid_micros, counted)
        return Award(schedule, self.mechanism.charge(price), density, counted, welfare)

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

        Args:
            demand: for the work that remains; what it held before is given up.
            priced: (slot, row) of the node-slots whose prices the task has raised already.
            density_micros: b-bar_il of the task's award.
            budget_steps: see `best_schedule`.

        Returns:
            The new schedule, its room taken; None if there is none.
        """
        options = [VendorOption(None, 0, 0)]
        window = Window.of(self.market, demand, options, first_slot, last_slot)
        if window is None:
            return None
        return self.prices.replan(demand, window, priced, density_micros, budget_steps)

    def release(self, placement: Placement, demand: Demand) -> None:
        """Take back node-slots ahead of an admitted job that still counts in the planned welfare."""
        self.market.release(placement, demand)
        self.prices.released(placement, demand)

    def withdraw(self, placement: Placement, demand: Demand, counted: Counted) -> None:
        """Take back the node-slots ahead of an admitted job that counts no more."""
        self.market.release(placement, demand)
        self.prices.withdrawn(counted)

    def operational_micros(self, demand: Demand, placement: Placement) -> int:
        """What a placement within the window costs to run."""
        if not placement.slots:
            return 0
        return describe(self.market, demand, VendorOption(None, 0, 0), placement).operational_micros

    def state(self) -> dict[str, Any]:
        """Everything that changes, of types that msgpack writes."""
        return {
            "market": self.market.state(),
            "welfare": self.welfare.state(),
            "prices": self.prices.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state of an auctioneer of an equal zone."""
        self.market.restore(state["market"])
        self.welfare.restore(state["welfare"])
        self.prices.restore(state["prices"])

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
            basis=self.prices.basis,
        )
