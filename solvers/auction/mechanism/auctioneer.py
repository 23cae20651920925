"""Algorithm 1: decide each bid on arrival, admit it if and only if it is above its price, and raise the
prices.

A `Mechanism`, pdFTSP's or a baseline's, determines how a plan is found and its price; `Prices` determine how
the prices of resources move.
"""

from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from solvers.auction.market.demand import Demand
from solvers.auction.market.market import Market, Placement, carry_over_use
from solvers.auction.market.window import (
    Binding,
    RoomCount,
    VendorOption,
    Window,
    binding,
    earliest_last_slot,
    room_for,
)
from solvers.auction.mechanism.certificate import WelfareSums
from solvers.auction.mechanism.mechanism import (
    Charge,
    Counted,
    Mechanism,
    PostedBasis,
    Price,
    Prices,
    Request,
)
from solvers.auction.mechanism.search import Schedule, describe


class Appraisal(NamedTuple):
    """Plan and price of a task in the market, independent of the bid."""

    schedule: Schedule | None
    """Plan of the mechanism; pdFTSP's is the best (Eq. 9)."""
    price: Price | None
    """Price that a bid must exceed; None without a plan."""
    window: Window | None
    """Part of the market for the request; None if even an empty one could not do the work in time."""
    room: RoomCount
    binding: Binding
    earliest_last_slot: int | None
    basis: PostedBasis | None
    """Values from which the price was computed."""


class Award(NamedTuple):
    """Schedule and charge of an admitted bid."""

    schedule: Schedule
    charge: Charge
    density_micros: float
    """Welfare per normalised resource, b-bar_il, by which replanning raises prices."""
    counted: Counted
    """Contribution of the bid to the certificate."""
    welfare_micros: int
    """Welfare of the plan: the bid less the vendor's price and the operational cost."""


class Auctioneer:
    """Auction of one zone: its market, its welfare, and the proven bound on welfare."""

    def __init__(self, market: Market, mechanism: Mechanism, prices: Prices) -> None:
        self.market = market
        self.mechanism = mechanism
        self.prices = prices
        self.welfare = WelfareSums()

    def advance(self, first_slot: int) -> None:
        """Move the market's window to `first_slot`."""
        self.market.advance(first_slot)
        self.prices.advance()

    def inherit(self, before: "Auctioneer") -> None:
        """Take over the state of an auctioneer of the zone with other nodes, window or settings."""
        self.welfare.restore(before.welfare.state())
        carry_over_use(before.market, self.market)
        self.prices.inherit(before.prices)

    def appraise(self, request: Request) -> Appraisal:
        """Find the plan for a task, or the obstacle. It changes nothing and does not depend on the bid."""
        window = self._window(request)
        schedule = None if window is None else self.mechanism.plan(self.market, request, window)
        return self._appraisal(request, window, schedule)

    def appraise_plan(self, request: Request, schedule: Schedule | None) -> Appraisal:
        """Appraise a plan that was computed elsewhere, or its absence."""
        return self._appraisal(request, self._window(request), schedule)

    def decide(self, bid_micros: int, request: Request, appraisal: Appraisal) -> Award | None:
        """Admit a bid iff it is above its price (for pdFTSP: F(il) = bid - critical value > 0), and then take
        its room and raise prices.

        The plan and the price are the appraisal's, so neither depends on the bid: this makes the auction
        truthful (Theorem 3, erratum P1).
        """
        counted = self.count_bid(bid_micros, request, appraisal)
        schedule, price = appraisal.schedule, appraisal.price
        if schedule is None or price is None or bid_micros <= price.micros:
            self.prices.lost(counted)
            return None
        return self.award(bid_micros, request.demand, schedule, price, counted)

    def count_bid(self, bid_micros: int, request: Request, appraisal: Appraisal) -> Counted:
        """Count a bid in the certificate."""
        return self.prices.count_bid(bid_micros, request, appraisal.window)

    def award(
        self, bid_micros: int, demand: Demand, schedule: Schedule, price: Price, counted: Counted
    ) -> Award | None:
        """Award a bid its schedule; None without room for it.

        Args:
            counted: contribution of the bid to the certificate so far.
        """
        welfare = bid_micros - schedule.vendor_micros - schedule.operational_micros
        density = self.prices.rise(schedule, demand, counted, welfare)
        if not self.market.has_room(schedule.placement, demand):
            # New schedules get here only in the published order: it raises prices for a rejected task
            # (erratum P2).
            return None
        self.market.hold(schedule.placement, demand)
        self.welfare.planned_micros += welfare
        counted = self.prices.awarded(schedule, demand, bid_micros, counted)
        return Award(schedule, self.mechanism.charge(price), density, counted, welfare)

    def replan(
        self,
        demand: Demand,
        priced_slots: AbstractSet[tuple[int, int]],
        density_micros: float,
        first_slot: int,
        last_slot: int,
        budget_steps: int,
    ) -> Schedule | None:
        """Plan the rest of an admitted task again, at no charge to its user.

        Args:
            demand: demand of the remaining work; former room is already released.
            priced_slots: (slot, row) of the node-slots whose prices the task has raised already.
            density_micros: b-bar_il of the task's award.
            budget_steps: see `best_schedule`.

        Returns:
            The new schedule, with its room taken; None without a schedule.
        """
        options = [VendorOption(None, 0, 0)]
        window = Window.of(self.market, demand, options, first_slot, last_slot)
        if window is None:
            return None
        return self.prices.replan(demand, window, priced_slots, density_micros, budget_steps)

    def release(self, placement: Placement, demand: Demand) -> None:
        """Release future node-slots of an admitted job that still counts in the planned welfare."""
        self.market.release(placement, demand)
        self.prices.released(placement, demand)

    def withdraw(self, placement: Placement, demand: Demand, counted: Counted) -> None:
        """Release the future node-slots of an admitted job that no longer counts."""
        self.market.release(placement, demand)
        self.prices.withdrawn(counted)

    def operational_micros(self, demand: Demand, placement: Placement) -> int:
        """Return the operational cost of a placement within the window."""
        if not placement.slots:
            return 0
        return describe(self.market, demand, VendorOption(None, 0, 0), placement).operational_micros

    def state(self) -> dict[str, Any]:
        """Return the mutable state, in types that msgpack writes."""
        return {
            "market": self.market.state(),
            "welfare": self.welfare.state(),
            "prices": self.prices.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state of an auctioneer of an equal zone."""
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
