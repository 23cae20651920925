"""Posted prices of a zone for compute and memory, per slot and class of nodes, and their changes.

A node-slot of a class costs its units (`room.py`) times the base level, and more as the class fills up in
the slot: part of the way to the guard level, by the square of the part that is used after one more large task
(`levels.py`). The scarcer of the two resources has the price. In an empty zone, room costs a part of its
operational cost. No bid moves a price before its decision, losing bids never raise one, and within a slot no
price falls. From slot to slot it falls by a bounded part, and by the rises of withdrawn bids. The price of a
unit is equal for tasks of all sizes, so that no other size than the true one is cheaper.
"""

import math
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import numpy as np

from solvers.auction.density_classes import A_CLASS_LOWER
from solvers.auction.market.demand import Demand
from solvers.auction.market.fleet import Calendar
from solvers.auction.market.market import Market, Placement, placement_of
from solvers.auction.market.node_slots import fullest_rows
from solvers.auction.market.window import Window
from solvers.auction.mechanism.mechanism import ClassPrice, Counted, PostedBasis, Prices, Request
from solvers.auction.mechanism.search import SEARCH_BUDGET_STEPS, Schedule, describe
from solvers.auction.posted.bound import ConstantPrices
from solvers.auction.posted.constants import (
    GUARD_PART,
    LOW_OFFER_PART,
    MOST_COUNTED,
    MOST_UNSOLD,
    TYPICAL_OFFER_PART,
)
from solvers.auction.posted.day_pattern import DayPattern
from solvers.auction.posted.demand_curve import DemandCurve, power
from solvers.auction.posted.levels import NO_RISE, Levels, Rise, least_level
from solvers.auction.posted.plans import FoundPlan, Weights, lightest, placed_plan
from solvers.auction.posted.room import Ahead, MarketRoom, least_cost_micros, least_memory_units, more_units
from solvers.compiled import Floats, kernel


class PostedPrices:
    """See `Prices`. Arrays of prices have shape (slots, classes), in micros per node-slot."""

    def __init__(self, market: Market, calendar: Calendar) -> None:
        self._market = market
        classes = market.fleet.classes
        horizon_slots = market.horizon_slots
        self._room = MarketRoom(market)
        self._node_units = self._room.node_units
        self._first_slot = market.first_slot
        self.curve = DemandCurve(horizon_slots)
        # Bids arrive in the slot before the first that they may use.
        self.pattern = DayPattern(calendar, market.first_slot - 1, horizon_slots)
        self.levels = Levels(horizon_slots)
        self.compute_price = np.zeros((horizon_slots, len(classes)))
        self.memory_price = np.zeros((horizon_slots, len(classes)))
        self._compute_part = 0.5
        """Part of compute in the price of a unit."""
        self.withdrawn_rise = NO_RISE
        """Rise of the levels by bids that were withdrawn since the slot began."""
        self._certificate = ConstantPrices(market.first_slot, horizon_slots)

    @property
    def bound_micros(self) -> int:
        return self._certificate.bound_micros

    def advance(self) -> None:
        passed = self._market.first_slot - self._first_slot
        lost_at = self.levels.lost_at
        if passed > 0:
            expected = self.pattern.expected(min(passed, self.curve.forgets_after_slots + 1))
            # When all room is sold, there are no sales whatever the demand: so losers count besides running
            # ones.
            most_lost_units = MOST_UNSOLD * max(self._room.used_units(1))
            asked_units = self.curve.asked_units(most_lost_units)
            self.pattern.advance(passed, asked_units, self._room.units_per_slot)
            self._first_slot = self._market.first_slot
            kept = power(1.0 - self.levels.fall(self.curve), passed)
            for prices in (self.compute_price, self.memory_price):
                _advance_prices(prices, passed, kept)
            self.levels.lower(kept)
            self.curve.advance(expected, self.levels.recent_slots(self.curve))
            self._certificate.advance(self._first_slot)
        self._room.measure()
        self._move_compute_part()
        if passed > 0:
            self._undo_withdrawn(lost_at)
        self._post()

    def count_bid(self, bid_micros: int, request: Request, window: Window | None) -> Counted:
        if window is None:
            return Counted(slot=self._first_slot)
        self._certificate.open(
            self._first_slot, self._first_slot + window.columns.stop - 1, self._room.units_per_slot
        )
        counted = Counted(
            net_micros=bid_micros - least_cost_micros(request.demand, window),
            compute_units=float(request.demand.work_samples),
            memory_units=least_memory_units(request.demand, self._node_units),
            window_slots=window.slots,
            slot=self._first_slot,
        )
        self._certificate.count_bid(counted.net_micros, counted.compute_units, counted.memory_units)
        return counted

    def lost(self, counted: Counted) -> None:
        units = self._units(counted)
        if units > 0:
            density, lost_at = counted.net_micros / units, self.levels.lost_at
            self.curve.lose(min(density, lost_at), units)
            if density > lost_at > 0:
                self.curve.count_full_offer(min(density, MOST_COUNTED * lost_at), units, counted.window_slots)

    def rise(self, schedule: Schedule, demand: Demand, counted: Counted, welfare_micros: int) -> float:  # noqa: ARG002
        return 0.0

    def awarded(
        self,
        schedule: Schedule,
        demand: Demand,
        bid_micros: int,  # noqa: ARG002
        counted: Counted,
    ) -> Counted:
        units = self._units(counted)
        share = self._room.count(schedule.placement, demand, 1.0)
        self.curve.sell(counted.net_micros / units, units, counted.window_slots, share)
        before = replace(self.levels)
        self._post(sold_units=units)
        rise = Rise.between(before, self.levels)
        return counted._replace(
            base_part=rise.base_part, guard_part=rise.guard_part, sold_units=units, share=share
        )

    def withdrawn(self, counted: Counted) -> None:
        """Remove the offer of a bid; its rise of prices stays for the slot and is then undone."""
        self.withdrawn_rise = self.withdrawn_rise.times(Rise(counted.base_part, counted.guard_part))
        units = counted.sold_units
        if units > 0:
            age_slots = self._first_slot - counted.slot
            self.curve.remove(
                counted.net_micros / units, units, counted.window_slots, age_slots, counted.share
            )
        # The bid may have been counted under prices of another kind.
        self._certificate.settle(-counted.gain_micros)
        self._certificate.remove(
            counted.net_micros, counted.compute_units, counted.memory_units, counted.slot
        )
        self._room.measure()

    def released(self, placement: Placement, demand: Demand) -> None:
        _, _, classes = self._market.locate(placement)
        units = self._node_units[classes]
        shares = demand.compute_share[classes] * units, demand.memory_share[classes] * units
        for slot, compute, memory in zip(
            placement.slots, shares[0].tolist(), shares[1].tolist(), strict=True
        ):
            self._certificate.add_room(slot, compute, memory)
        self._room.count(placement, demand, -1.0)

    def replan(
        self,
        demand: Demand,
        window: Window,
        priced_slots: AbstractSet[tuple[int, int]],  # noqa: ARG002
        density_micros: float,  # noqa: ARG002
        budget_steps: int,
    ) -> Schedule | None:
        """Plan the rest of a task at the least weight for others, as for a new task."""
        columns = window.columns
        found = lightest(
            fullest_rows(self._market.node_slots(columns.start, columns.stop), demand),
            demand,
            window.operational,
            window.delays_slots,
            window.prices_micros,
            self._placement_weights(columns.start),
            budget_steps,
        )
        if found.option < 0:
            return None
        schedule = self._described(demand, window, found)
        self._market.reserve(schedule.placement, demand)
        self._room.count(schedule.placement, demand, 1.0)
        self._post()
        return schedule._replace(search_steps=found.steps)

    def plan(
        self, demand: Demand, window: Window, budget_steps: int = SEARCH_BUDGET_STEPS
    ) -> Schedule | None:
        """Return the placed plan for a task, with the price of the priced plan. Both are independent of the
        bid.

        The priced plan is the cheapest one at posted prices. The placed plan ends with the last node-slot
        of that plan, and has the rest of the work where it leaves most room to others. Near node-slots weigh
        less than far ones, since near room is soon lost. Node-slots of an empty class weigh less than those
        of a full class. The shorter the windows of high offers, the more a full class weighs. The placed plan
        does not end earlier than the priced one: otherwise a user could claim a late deadline, pay less, and
        not wait. If its vendor and operation alone cost more than the price, the cheapest plan itself is
        placed, so that no price is below cost.
        """
        columns = window.columns
        priced_plan, placed = placed_plan(
            self._market.node_slots(columns.start, columns.stop),
            demand,
            self.compute_price[columns],
            self.memory_price[columns],
            self._market.full_costs[columns],
            window.operational,
            window.delays_slots,
            window.prices_micros,
            self._placement_weights(columns.start),
            budget_steps,
        )
        if priced_plan.option < 0:
            return None
        schedule = self._described(demand, window, priced_plan if placed.option < 0 else placed)
        if schedule.vendor_micros + schedule.operational_micros > priced_plan.cost:
            schedule = self._described(demand, window, priced_plan)
        room_micros = max(priced_plan.cost - schedule.vendor_micros - schedule.operational_micros, 0.0)
        compute, memory = priced_plan.compute, priced_plan.memory
        part = memory / (compute + memory) if memory > 0 else 0.0
        return schedule._replace(
            compute_micros=room_micros - room_micros * part,
            memory_micros=room_micros * part,
            gap_micros=max(priced_plan.cost - priced_plan.bound, 0.0),
            search_steps=priced_plan.steps + placed.steps,
        )

    @property
    def basis(self) -> PostedBasis:
        span_slots = self.levels.span_slots(self.curve)
        return PostedBasis(
            base_micros_per_unit=self.levels.base,
            guard_micros_per_unit=self.levels.guard,
            compute_part=self._compute_part,
            span_slots=span_slots,
            remembered_slots=self.curve.slots,
            expected_slots=self._expected_slots,
            believed_part=self.pattern.believed_part,
            expected_by_hour=self.pattern.by_hour,
            asked_share=self.curve.units_per_slot / self._room.units_per_slot,
            fall=self.levels.fall(self.curve),
        )

    def of_class(self, index: int) -> ClassPrice:
        compute, memory = self.compute_price[:, index], self.memory_price[:, index]
        slots = len(compute)
        return ClassPrice(
            math.fsum(compute.tolist()) / slots,
            float(compute.max()),
            math.fsum(memory.tolist()) / slots,
            float(memory.max()),
        )

    def of_node_slots(self) -> Floats:
        return (self.compute_price + self.memory_price)[:, self._market.fleet.class_of_row]

    def inherit(self, before: Prices) -> None:
        """Keep the learned demand, since units are equal for all nodes; additional room counts again.

        After prices of another kind, prices start again.
        """
        if isinstance(before, PostedPrices):
            self._inherit_posted(before)
        else:
            self._certificate.add_earlier_bound(before.bound_micros, self._first_slot)
        self._room.measure()
        self._post()

    def _inherit_posted(self, before: "PostedPrices") -> None:
        self.curve.restore(before.curve.state())
        self.pattern.restore(before.pattern.state())
        self.levels.base, self.levels.guard = before.levels.base, before.levels.guard
        self._compute_part = before._compute_part
        self.withdrawn_rise = before.withdrawn_rise
        self._certificate.restore(before._certificate.state())
        known, fleet = before._market.fleet, self._market.fleet
        for row, node in enumerate(fleet.nodes):
            place, old_row = fleet.class_of_row[row], known.row_of.get(node)
            more = self._node_units[place], self._node_units[place]
            if old_row is not None:
                old_place = known.class_of_row[old_row]
                more = more_units(
                    (before._node_units[old_place], known.classes[old_place].capacity_gib),
                    (self._node_units[place], fleet.classes[place].capacity_gib),
                )
            if any(more):
                self._certificate.add_room_ahead(self._first_slot, *more)
        old_index = {(c.gpu_type, c.tariff.name): index for index, c in enumerate(known.classes)}
        kept = min(len(self.compute_price), len(before.compute_price))
        for index, node_class in enumerate(fleet.classes):
            old_class = old_index.get((node_class.gpu_type, node_class.tariff.name))
            if old_class is not None:
                self.compute_price[:kept, index] = before.compute_price[:kept, old_class]
                self.memory_price[:kept, index] = before.memory_price[:kept, old_class]

    def state(self) -> dict[str, Any]:
        return {
            "first_slot": self._first_slot,
            "curve": self.curve.state(),
            "pattern": self.pattern.state(),
            "levels": [self.levels.base, self.levels.guard],
            "compute_part": self._compute_part,
            "withdrawn": [self.withdrawn_rise.base_part, self.withdrawn_rise.guard_part],
            "certificate": self._certificate.state(),
            "compute": self.compute_price.tobytes(),
            "memory": self.memory_price.tobytes(),
            "taken": self._room.used.tobytes(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._first_slot = state["first_slot"]
        self.curve.restore(state["curve"])
        self.pattern.restore(state["pattern"])
        self.levels.base, self.levels.guard = state["levels"]
        self._compute_part = state["compute_part"]
        self.withdrawn_rise = Rise(*state["withdrawn"])
        self._certificate.restore(state["certificate"])
        for name, array in (
            ("compute", self.compute_price),
            ("memory", self.memory_price),
            ("taken", self._room.used),
        ):
            array[:] = np.frombuffer(state[name], "<f8").reshape(array.shape)

    def _units(self, counted: Counted) -> float:
        part = self._compute_part
        return part * counted.compute_units + (1 - part) * counted.memory_units

    def _described(self, demand: Demand, window: Window, found: FoundPlan) -> Schedule:
        placement = placement_of(found.rows, self._market.first_slot + window.columns.start)
        return describe(self._market, demand, window.options[found.option], placement)

    def _placement_weights(self, first_column: int) -> Weights:
        typical = max(self.levels.base, self.curve.sold_density(TYPICAL_OFFER_PART))
        return Weights(
            node_units=self._node_units,
            used=self._room.used,
            first_column=first_column,
            typical=typical,
            premium=self.curve.haste_premium(typical),
            span_slots=self.levels.span_slots(self.curve),
            compute_part=self._compute_part,
        )

    def _move_compute_part(self) -> None:
        """Move the price to the resource of which more is used."""
        compute, memory = self._room.used_units(self.levels.span_slots(self.curve))
        if compute + memory > 0:
            compute, memory = _eighth(compute), _eighth(memory)
            self._compute_part = compute / (compute + memory)

    def _post(self, sold_units: float = 0.0) -> None:
        """Move the levels, and raise every price that is below its value by the levels."""
        least = least_level(self._operational_per_unit(), self.curve.sold_density(LOW_OFFER_PART))
        self.levels.rise(self.curve, self._ahead(), sold_units, least)
        _raise_prices(
            self.compute_price,
            self.memory_price,
            self._room.used,
            self._node_units,
            self.curve.large_share / self._room.nodes,
            self.curve.packed_part,
            self.levels.base,
            self.levels.guard,
            self._compute_part,
        )

    def _ahead(self) -> Ahead:
        span_slots = self.levels.span_slots(self.curve)
        free, whole = self._room.ahead(span_slots, self._compute_part, self.curve.packed_part)
        return Ahead(free, whole, self._expected_slots)

    @property
    def _expected_slots(self) -> float:
        levels, curve = self.levels, self.curve
        return self.pattern.expected_ahead(levels.span_slots(curve), levels.busiest_slots(curve))

    def _undo_withdrawn(self, lost_at: float) -> None:
        """Undo the rises of prices by bids that were withdrawn in the previous slot.

        Args:
            lost_at: density to which bids that lost in that slot are clipped.
        """
        if self.withdrawn_rise != NO_RISE:
            # Undoing a rise of less than a class would lower losers at the edge of a class, almost without
            # gain.
            if self.withdrawn_rise.base_part < A_CLASS_LOWER:
                self.curve.lower_losers(lost_at * self.withdrawn_rise.base_part / A_CLASS_LOWER)
            kept = self.levels.undo(self.withdrawn_rise, self.curve, self._ahead())
            self.compute_price *= kept
            self.memory_price *= kept
            self.withdrawn_rise = NO_RISE

    def _operational_per_unit(self) -> float:
        """Return the operational cost per unit in the next slot, on the cheapest class."""
        costs, units = self._market.full_costs[0].tolist(), self._node_units.tolist()
        return float(min(cost / of_node for cost, of_node in zip(costs, units, strict=True)))


@kernel
def _raise_prices(
    compute_price: Floats,
    memory_price: Floats,
    used: Floats,
    node_units: Floats,
    next_part: Floats,
    packed_part: float,
    base: float,
    guard: float,
    compute_part: float,
) -> None:
    """Raise every price that is below its value by the levels.

    A node-slot costs u (b + GUARD_PART (g - b) z^2), at base b and guard g, for u units of a node. Here
    z = min((x + y) / p, 1) is the used part of the class in the slot after one more large task: x is used
    now, such a task uses y, and p is the part of a node that tasks can take. Without large tasks z is x.

    Args:
        used: (2, slots, classes) used part x of compute and of memory.
        node_units: (classes,) units u.
        next_part: (classes,) part y of the nodes of a class.
        packed_part: part p.
    """
    slots, classes = compute_price.shape
    for slot in range(slots):
        for index in range(classes):
            for resource in range(2):
                part = min((used[resource, slot, index] + next_part[index]) / packed_part, 1.0)
                weighted = node_units[index] * (base + GUARD_PART * (guard - base) * part * part)
                if resource == 0:
                    compute_price[slot, index] = max(compute_price[slot, index], compute_part * weighted)
                else:
                    memory_price[slot, index] = max(memory_price[slot, index], (1 - compute_part) * weighted)


def _eighth(value: float) -> float:
    square = value * value
    fourth = square * square
    return fourth * fourth


def _advance_prices(prices: Floats, passed: int, kept: float) -> None:
    """Lower prices, and open new slots at the price of the last one, so that waiting for them pays no more
    than waiting for any other."""
    prices *= kept
    moved = min(passed, len(prices))
    last = prices[-1].copy()
    prices[: len(prices) - moved] = prices[moved:].copy()
    prices[len(prices) - moved :] = last
