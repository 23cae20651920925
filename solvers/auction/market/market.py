"""Rolling window of a zone's node-slots (slot, node): their use and dual prices, and their transfer to a new
market when the nodes or the window of the zone change.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from solvers.auction.market.demand import Demand
from solvers.auction.market.fleet import Fleet
from solvers.auction.market.node_slots import (
    NodeSlotIndices,
    NodeSlots,
    PriceOrder,
    change_free,
    has_room,
    open_slots,
)
from solvers.auction.mechanism.counts import NO_CHOICE
from solvers.compiled import Floats, Ints

HIGHEST_PRICE_MICROS = 1e30
"""Highest price of a node-slot. The least share that a task can use is some 1e-14, so no bid of at most 1e15
micros ever exceeds it. Prices stop here, far below overflow of their sums, without changing any decision."""


NEVER = 2**62
"""Slot that never occurs."""

_HALVES = 2.0**27 + 1
"""Factor that splits a number into halves of 26 bits (T. J. Dekker, "A floating-point technique for extending
the available precision", 1971)."""

ClassSlotValue = Callable[[int, Ints], Floats | float]
"""Function (class, slots) -> micros per node-slot, for each slot or for all of them."""


@dataclass(frozen=True)
class EmptyPrices:
    """Price of an empty node-slot: a forecast of demand, or zero."""

    compute: ClassSlotValue = lambda _index, _slots: 0.0
    memory: ClassSlotValue = lambda _index, _slots: 0.0


class Placement(NamedTuple):
    """Placement of a schedule l: one node row per chosen slot, ascending in slots (x_ikt = 1)."""

    slots: tuple[int, ...]
    """Absolute slots."""
    rows: tuple[int, ...]
    """Rows of the fleet's nodes."""

    def node_slots(self) -> Iterator[tuple[int, int]]:
        """Yield (slot, row) of each node-slot."""
        return zip(self.slots, self.rows, strict=True)


def placement_of(rows: Ints, first_slot: int) -> Placement:
    """Return the placement of node rows by slot, from `first_slot` on, with `NO_CHOICE` for pauses."""
    ahead = np.flatnonzero(rows != NO_CHOICE)
    return Placement(slots=tuple((ahead + first_slot).tolist()), rows=tuple(rows[ahead].tolist()))


class Market:
    """Prices and use of every node-slot from the next slot to the horizon.

    The window's first slot is the one after the present slot, whose commands are already sent. Prices are of
    normalised resources (erratum P5): micros per node-slot of compute (C_kp lambda_kt) and of memory
    ((C_km - r_b) phi_kt). They start at the opening prices and only rise.
    """

    def __init__(
        self,
        fleet: Fleet,
        horizon_slots: int,
        first_slot: int,
        full_cost: ClassSlotValue,
        opening: EmptyPrices | None = None,
    ) -> None:
        """Make an empty market.

        Args:
            full_cost: operational cost of a full node.
            opening: opening prices; None for zero.
        """
        self.fleet = fleet
        self.first_slot = first_slot
        self._full_cost = full_cost
        self._opening = opening or EmptyPrices()
        self._class_bounds = np.array([c.start for c in fleet.classes] + [len(fleet.nodes)], np.int64)
        self._class_of_row = np.array(fleet.class_of_row, np.int64)
        self.capacity_samples = np.array([fleet.classes[c].capacity_samples for c in fleet.class_of_row])
        """Capacities C_kp, (rows,)."""
        self.capacity_gib = np.array([fleet.classes[c].capacity_gib for c in fleet.class_of_row])
        """Capacities C_km - r_b, (rows,)."""
        self.compute_price = self.opening_compute_price(first_slot, horizon_slots)
        self.memory_price = self.opening_memory_price(first_slot, horizon_slots)
        self.free_samples = np.tile(self.capacity_samples, (horizon_slots, 1))
        self.free_gib = np.tile(self.capacity_gib, (horizon_slots, 1))
        self.price_order = PriceOrder(self._class_bounds, self.compute_price, self.memory_price)
        self.node_up = np.ones(len(fleet.nodes), np.bool_)
        self.node_open = np.ones(len(fleet.nodes), np.bool_)
        """Whether anything new may be planned on a node while it is up, (rows,)."""
        self.closes_at = np.full(len(fleet.nodes), NEVER, np.int64)
        """First slot in which nothing may be planned on a node that is up and open, (rows,). The owner of the
        market sets it for nodes that close, also after `restore`."""
        self.full_costs = self._by_class(self._full_cost, first_slot, horizon_slots)

    @property
    def horizon_slots(self) -> int:
        return len(self.compute_price)

    def advance(self, first_slot: int) -> None:
        """Move the window to `first_slot`, no earlier than now. New slots are free, at opening prices."""
        passed = min(first_slot - self.first_slot, self.horizon_slots)
        if passed <= 0:
            return
        kept = self.horizon_slots - passed
        for node_slots, fresh in (
            (self.compute_price, self.opening_compute_price(first_slot + kept, passed)),
            (self.memory_price, self.opening_memory_price(first_slot + kept, passed)),
            (self.free_samples, self.capacity_samples),
            (self.free_gib, self.capacity_gib),
            (self.full_costs, self._by_class(self._full_cost, first_slot + kept, passed)),
        ):
            node_slots[:kept] = node_slots[passed:]
            node_slots[kept:] = fresh
        self.price_order.advance(passed)
        self.first_slot = first_slot

    def opening_compute_price(self, first_slot: int, slots: int) -> Floats:
        """Return the price of compute in empty node-slots, (slots, rows)."""
        return self._by_row(self._opening.compute, first_slot, slots)

    def opening_memory_price(self, first_slot: int, slots: int) -> Floats:
        """Return the price of memory in empty node-slots, (slots, rows)."""
        return self._by_row(self._opening.memory, first_slot, slots)

    def opening_sums(self, first_slot: int, slots: int) -> list[float]:
        """Return terms whose exact sum is that of all opening prices of some slots, of compute and of memory.

        Each price counts for every node of its class, in two parts whose products are exact.
        """
        nodes = np.diff(self._class_bounds)
        sums: list[float] = []
        for value in (self._opening.compute, self._opening.memory):
            prices = self._by_class(value, first_slot, slots)
            scaled = _HALVES * prices
            upper = scaled - (scaled - prices)
            sums += (upper * nodes).ravel().tolist() + ((prices - upper) * nodes).ravel().tolist()
        return sums

    def operational(self, demand: Demand) -> Floats:
        """Return e_ikt of one slot of the task, (slots, classes), in whole micros, rounded up."""
        return demand.operational(self.full_costs)

    def node_slots(self, start: int, stop: int) -> NodeSlots:
        """Return the columns from `start` to before `stop`."""
        return NodeSlots(
            self.compute_price[start:stop],
            self.memory_price[start:stop],
            self.free_samples[start:stop],
            self.free_gib[start:stop],
            self.open_slots(start, stop),
            self._class_bounds,
            self.price_order.rows[start:stop],
            self.price_order.memory_ahead[start:stop],
        )

    def emptied_node_slots(self, start: int, stop: int) -> NodeSlots:
        """Return `node_slots` as if nothing were taken and no node were closed."""
        slots = (stop - start, 1)
        return self.node_slots(start, stop)._replace(
            free_samples=np.tile(self.capacity_samples, slots),
            free_gib=np.tile(self.capacity_gib, slots),
            open_slots=np.full(len(self.fleet.nodes), stop - start, np.int64),
        )

    def open_slots(self, start: int, stop: int) -> Ints:
        """Return the number of columns from `start` to before `stop` in which a node is open, (rows,)."""
        return open_slots(self.closes_at, self.node_up, self.node_open, self.first_slot, start, stop)

    def locate(self, placement: Placement) -> NodeSlotIndices:
        """Return the columns, rows and classes of a placement's node-slots, all within the window."""
        rows = np.array(placement.rows, np.int64)
        return NodeSlotIndices(
            np.array(placement.slots, np.int64) - self.first_slot, rows, self._class_of_row[rows]
        )

    def has_room(self, placement: Placement, demand: Demand) -> bool:
        """Return whether every node-slot of a placement is on a node that is up and open then and has room
        for the task."""
        return has_room(
            self.locate(placement),
            demand,
            self.free_samples,
            self.free_gib,
            self.open_slots(0, self.horizon_slots),
        )

    def reserve(self, placement: Placement, demand: Demand) -> None:
        """Take the room of a placement.

        Raises:
            ValueError: a node-slot lacks the room; nothing is taken then.
        """
        if not self.has_room(placement, demand):
            raise ValueError(f"slots {placement.slots} on rows {placement.rows} have no room for the task")
        self.hold(placement, demand)

    def hold(self, placement: Placement, demand: Demand) -> None:
        """Take the room of a placement without a check, on a closed node too."""
        change_free(self.locate(placement), demand, 1, self.free_samples, self.free_gib)

    def release(self, placement: Placement, demand: Demand) -> None:
        """Release the room of a placement in the window. Prices stay: they never fall."""
        change_free(self.locate(placement), demand, -1, self.free_samples, self.free_gib)

    def raise_prices(
        self, placement: Placement, demand: Demand, density_micros: float, alpha: float, beta: float
    ) -> list[float]:
        """Apply Eqs. 7 and 8 to the node-slots of a placement, with `density_micros` for b-bar.

        Returns:
            Every rise, in micros per node-slot: terms of the growth of the dual objective.
        """
        columns, rows, classes = self.locate(placement)
        rises: list[float] = []
        for price, share, factor in (
            (self.compute_price, demand.compute_share[classes], alpha),
            (self.memory_price, demand.memory_share[classes], beta),
        ):
            rise = np.minimum(
                price[columns, rows] * share + factor * density_micros * share,
                np.maximum(HIGHEST_PRICE_MICROS - price[columns, rows], 0.0),
            )
            price[columns, rows] += rise
            rises += rise.tolist()
        self.price_order.rise(columns, rows, classes)
        return rises

    def state(self) -> dict[str, Any]:
        """Return the mutable state, in types that msgpack writes."""
        return {
            "first_slot": self.first_slot,
            "node_up": self.node_up.tobytes(),
            "node_open": self.node_open.tobytes(),
            **{name: getattr(self, name).tobytes() for name in _NODE_SLOT_ARRAYS},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state of a market of the same fleet and horizon."""
        self.first_slot = state["first_slot"]
        self.node_up[:] = np.frombuffer(state["node_up"], np.bool_)
        self.node_open[:] = np.frombuffer(state["node_open"], np.bool_)
        for name in _NODE_SLOT_ARRAYS:
            node_slots = getattr(self, name)
            node_slots[:] = np.frombuffer(state[name], "<f8").reshape(node_slots.shape)
        self.price_order.sort(0)
        self.full_costs = self._by_class(self._full_cost, self.first_slot, self.horizon_slots)

    def _by_row(self, value: ClassSlotValue, first_slot: int, slots: int) -> Floats:
        """Return values as (slots, rows), contiguous by slot: kernels are compiled per layout."""
        return np.ascontiguousarray(self._by_class(value, first_slot, slots)[:, self._class_of_row])

    def _by_class(self, value: ClassSlotValue, first_slot: int, slots: int) -> Floats:
        values = np.empty((slots, len(self.fleet.classes)))
        for index in range(len(self.fleet.classes)):
            values[:, index] = value(index, np.arange(first_slot, first_slot + slots))
        return values


_NODE_SLOT_ARRAYS = ("compute_price", "memory_price", "free_samples", "free_gib")


def rows_of_both(before: Fleet, after: Fleet) -> tuple[Ints, Ints]:
    """Return the rows, before and after, of the nodes that two fleets share."""
    shared = [node for node in after.nodes if node in before.row_of]
    return (
        np.array([before.row_of[node] for node in shared], np.int64),
        np.array([after.row_of[node] for node in shared], np.int64),
    )


def carry_over_use(before: Market, after: Market) -> None:
    """Copy the use of shared nodes to a new market of the same first slot.

    Taken room of a node stays taken, whatever its capacity is now.
    """
    old, new = rows_of_both(before.fleet, after.fleet)
    kept = min(before.horizon_slots, after.horizon_slots)
    for name, capacity in (("free_samples", "capacity_samples"), ("free_gib", "capacity_gib")):
        used = getattr(before, capacity)[old] - getattr(before, name)[:kept, old]
        getattr(after, name)[:kept, new] = getattr(after, capacity)[new] - used
    after.node_up[new], after.node_open[new] = before.node_up[old], before.node_open[old]


def carry_over_prices(before: Market, after: Market, open_until_slot: int) -> list[float]:
    """Copy the prices of shared nodes to a new market of the same first slot.

    Prices of node-slots that bids could use already stay. For later ones, the rises stay, on top of their new
    opening prices. If the capacity of a node grows, its prices grow with it: per sample and per GiB they
    never fall.

    Args:
        open_until_slot: first slot that no bid could use yet.

    Returns:
        Terms of the growth of the dual objective: the rises of node-slots that bids could use by then, and
        the opening prices of new nodes.
    """
    old, new = rows_of_both(before.fleet, after.fleet)
    kept = min(before.horizon_slots, after.horizon_slots)
    opened = min(max(open_until_slot - after.first_slot, 0), kept)
    rises: list[float] = []
    for name, capacity, opening in (
        ("compute_price", "capacity_samples", Market.opening_compute_price),
        ("memory_price", "capacity_gib", Market.opening_memory_price),
    ):
        held: Floats = getattr(before, name)[:kept, old]
        growth = np.maximum(getattr(after, capacity)[new] / getattr(before, capacity)[old], 1.0)
        prices: Floats = getattr(after, name)
        fresh = prices[:kept, new]
        moved = np.maximum(held + (fresh - opening(before, after.first_slot, kept)[:, old]), fresh)
        moved[:opened] = held[:opened] * growth
        rises += (moved[:opened] - held[:opened]).ravel().tolist()
        prices[:kept, new] = moved
        rises += np.delete(prices[:opened], new, axis=1).ravel().tolist()
    after.price_order.sort(0)
    return rises
