"""The rolling window of a zone's node-slots (slot, node): what is used, and the dual prices."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from solvers.auction.market.demand import Demand
from solvers.auction.market.fleet import Fleet
from solvers.auction.market.node_slots import NodeSlots
from solvers.auction.market.placements import Located, has_room, open_slots, take
from solvers.auction.market.price_order import PriceOrder
from solvers.auction.mechanism.counts import NO_CHOICE
from solvers.compiled import Floats, Ints

HIGHEST_PRICE_MICROS = 1e30
"""Of a node-slot. The least share of one that a task can take is some 1e-14, so no bid of at most 1e15 micros
ever beats it: prices stop here, far from where sums of them overflow, and nothing is decided otherwise."""


NEVER = 2**62
"""A slot that does not come."""

_HALVES = 2.0**27 + 1
"""Times this, a number splits into halves of 26 bits (T. J. Dekker, "A floating-point technique for extending
the available precision", 1971)."""

ClassSlotValue = Callable[[int, Ints], Floats | float]
"""(class, slots) -> micros per node-slot, of each slot or of all of them."""


@dataclass(frozen=True)
class Opening:
    """What a node-slot costs before anything of it is taken: a forecast of demand, or nothing."""

    compute: ClassSlotValue = lambda _index, _slots: 0.0
    memory: ClassSlotValue = lambda _index, _slots: 0.0


class Placement(NamedTuple):
    """A schedule l: one node row per chosen slot, ascending in slots (x_ikt = 1)."""

    slots: tuple[int, ...]
    """Absolute slots."""
    rows: tuple[int, ...]
    """Rows of the fleet's nodes."""

    def node_slots(self) -> Iterator[tuple[int, int]]:
        """(slot, row) of each."""
        return zip(self.slots, self.rows, strict=True)


def placement_of(rows: Ints, first_slot: int) -> Placement:
    """The placement of node rows by slot, from `first_slot` on, with `NO_CHOICE` where the task pauses."""
    ahead = np.flatnonzero(rows != NO_CHOICE)
    return Placement(slots=tuple((ahead + first_slot).tolist()), rows=tuple(rows[ahead].tolist()))


class Market:
    """Prices and use of every node-slot from the next slot to the horizon.

    The window's first slot is the one after the present slot, whose commands are already out. Prices are of
    normalised resources (erratum P5): micros per node-slot of compute (C_kp lambda_kt) and of memory
    ((C_km - r_b) phi_kt). They start at the opening prices and only rise.
    """

    def __init__(
        self,
        fleet: Fleet,
        horizon_slots: int,
        first_slot: int,
        full_cost: ClassSlotValue,
        opening: Opening | None = None,
    ) -> None:
        """`full_cost` is the operational cost of a full node; without `opening`, prices begin at zero."""
        self.fleet = fleet
        self.first_slot = first_slot
        self._full_cost = full_cost
        self._opening = opening or Opening()
        self._class_bounds = np.array([c.start for c in fleet.classes] + [len(fleet.nodes)], np.int64)
        self._class_of_row = np.array(fleet.class_of_row, np.int64)
        self.capacity_samples = np.array([fleet.classes[c].capacity_samples for c in fleet.class_of_row])
        """(rows,) C_kp."""
        self.capacity_gib = np.array([fleet.classes[c].capacity_gib for c in fleet.class_of_row])
        """(rows,) C_km - r_b."""
        self.compute_price = self.opening_compute_price(first_slot, horizon_slots)
        self.memory_price = self.opening_memory_price(first_slot, horizon_slots)
        self.free_samples = np.tile(self.capacity_samples, (horizon_slots, 1))
        self.free_gib = np.tile(self.capacity_gib, (horizon_slots, 1))
        self.price_order = PriceOrder(self._class_bounds, self.compute_price, self.memory_price)
        self.node_up = np.ones(len(fleet.nodes), np.bool_)
        self.node_open = np.ones(len(fleet.nodes), np.bool_)
        """Whether anything new may be planned on a node while it is up."""
        self.closes_at = np.full(len(fleet.nodes), NEVER, np.int64)
        """(rows,) the first slot in which nothing may be planned on a node, up and open as it is. Whoever has
        nodes that close sets it, also after `restore`."""
        self.full_costs = self._by_class(self._full_cost, first_slot, horizon_slots)

    @property
    def horizon_slots(self) -> int:
        """How many slots the window has."""
        return len(self.compute_price)

    def advance(self, first_slot: int) -> None:
        """Let the window begin at `first_slot`, no earlier than now; new slots come in free, as they open."""
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
        """(slots, rows) what compute costs in node-slots that nothing was taken of yet."""
        return self._by_row(self._opening.compute, first_slot, slots)

    def opening_memory_price(self, first_slot: int, slots: int) -> Floats:
        """(slots, rows) what memory costs there."""
        return self._by_row(self._opening.memory, first_slot, slots)

    def opening_sums(self, first_slot: int, slots: int) -> list[float]:
        """Numbers whose exact sum is that of all opening prices of some slots, of compute and of memory.

        Each price counts for every node of its class: in two parts, whose products are exact.
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
        """e_ikt of one slot of the task per (slot, class), in whole micros, rounded up."""
        return demand.operational(self.full_costs)

    def node_slots(self, start: int, stop: int) -> NodeSlots:
        """The columns from `start` to before `stop`, as they are."""
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
        """As `node-slots`, if nothing were taken and no node were closed."""
        slots = (stop - start, 1)
        return self.node_slots(start, stop)._replace(
            free_samples=np.tile(self.capacity_samples, slots),
            free_gib=np.tile(self.capacity_gib, slots),
            open_slots=np.full(len(self.fleet.nodes), stop - start, np.int64),
        )

    def open_slots(self, start: int, stop: int) -> Ints:
        """(rows,) in how many columns from `start` to before `stop` something may be planned on a node."""
        return open_slots(self.closes_at, self.node_up, self.node_open, self.first_slot, start, stop)

    def locate(self, placement: Placement) -> Located:
        """Columns, rows and classes of a placement's node-slots, all within the window."""
        rows = np.array(placement.rows, np.int64)
        return Located(np.array(placement.slots, np.int64) - self.first_slot, rows, self._class_of_row[rows])

    def has_room(self, placement: Placement, demand: Demand) -> bool:
        """Whether every node-slot of a placement is on a node that is up and open then and has room for the
        task."""
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
            ValueError: if a node-slot lacks the room; nothing is taken then.
        """
        if not self.has_room(placement, demand):
            raise ValueError(f"slots {placement.slots} on rows {placement.rows} have no room for the task")
        self.hold(placement, demand)

    def hold(self, placement: Placement, demand: Demand) -> None:
        """Take the room of a placement that is known to have it, on a closed node too."""
        take(self.locate(placement), demand, 1, self.free_samples, self.free_gib)

    def release(self, placement: Placement, demand: Demand) -> None:
        """Give back the room of a placement in the window. Prices stay: they never fall."""
        take(self.locate(placement), demand, -1, self.free_samples, self.free_gib)

    def raise_prices(
        self, placement: Placement, demand: Demand, density_micros: float, alpha: float, beta: float
    ) -> list[float]:
        """Apply Eqs. 7 and 8 to the node-slots of a placement, with `density_micros` for b-bar.

        Returns:
            Every rise, in micros per node-slot: what the dual objective grows by.
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
        """Everything that changes, of types that msgpack writes."""
        return {
            "first_slot": self.first_slot,
            "node_up": self.node_up.tobytes(),
            "node_open": self.node_open.tobytes(),
            **{name: getattr(self, name).tobytes() for name in _NODE_SLOT_ARRAYS},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state of a market of the same fleet and horizon."""
        self.first_slot = state["first_slot"]
        self.node_up[:] = np.frombuffer(state["node_up"], np.bool_)
        self.node_open[:] = np.frombuffer(state["node_open"], np.bool_)
        for name in _NODE_SLOT_ARRAYS:
            node_slots = getattr(self, name)
            node_slots[:] = np.frombuffer(state[name], "<f8").reshape(node_slots.shape)
        self.price_order.sort(0)
        self.full_costs = self._by_class(self._full_cost, self.first_slot, self.horizon_slots)

    def _by_row(self, value: ClassSlotValue, first_slot: int, slots: int) -> Floats:
        """(slots, rows), slot after slot in memory as all node-slots are: kernels are compiled per layout."""
        return np.ascontiguousarray(self._by_class(value, first_slot, slots)[:, self._class_of_row])

    def _by_class(self, value: ClassSlotValue, first_slot: int, slots: int) -> Floats:
        values = np.empty((slots, len(self.fleet.classes)))
        for index in range(len(self.fleet.classes)):
            values[:, index] = value(index, np.arange(first_slot, first_slot + slots))
        return values


_NODE_SLOT_ARRAYS = ("compute_price", "memory_price", "free_samples", "free_gib")
