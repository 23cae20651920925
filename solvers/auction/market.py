"""The rolling window of a zone's cells (slot, node): what is used, and the dual prices."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from solvers.auction.demand import Demand
from solvers.auction.fleet import Fleet

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Placement:
    """A schedule l: one node row per chosen slot, ascending in slots (x_ikt = 1)."""

    slots: tuple[int, ...]
    """Absolute slots."""
    rows: tuple[int, ...]
    """Rows of the fleet's nodes."""


class Market:
    """Prices and use of every cell from the next slot to the horizon.

    The window's first slot is the one after the present slot, whose commands are already out. Prices are of
    normalised resources (erratum P5): micros per node-slot of compute (C_kp lambda_kt) and of memory
    ((C_km - r_b) phi_kt). They start at zero and only rise.
    """

    def __init__(
        self, fleet: Fleet, horizon_slots: int, first_slot: int, full_cost: Callable[[int, int], float]
    ) -> None:
        """`full_cost(class, slot)` is the operational cost of a fully used node, in micros."""
        self.fleet = fleet
        self.first_slot = first_slot
        self._full_cost = full_cost
        shape = (horizon_slots, len(fleet.nodes))
        self.class_bounds = np.array([c.start for c in fleet.classes] + [len(fleet.nodes)], np.int64)
        self._capacity_samples = np.array([fleet.classes[c].capacity_samples for c in fleet.class_of_row])
        self._capacity_gib = np.array([fleet.classes[c].capacity_gib for c in fleet.class_of_row])
        self.compute_price = np.zeros(shape)
        self.memory_price = np.zeros(shape)
        self.free_samples = np.tile(self._capacity_samples, (horizon_slots, 1))
        self.free_gib = np.tile(self._capacity_gib, (horizon_slots, 1))
        self.node_up = np.ones(len(fleet.nodes), np.bool_)
        self.full_costs = self._costs_from(first_slot, horizon_slots)

    @property
    def horizon_slots(self) -> int:
        """How many slots the window has."""
        return self.compute_price.shape[0]

    def advance(self, first_slot: int) -> None:
        """Let the window begin at `first_slot`, no earlier than now; new slots come in free and unpriced."""
        passed = min(first_slot - self.first_slot, self.horizon_slots)
        if passed <= 0:
            return
        kept = self.horizon_slots - passed
        for cells, fresh in (
            (self.compute_price, 0.0),
            (self.memory_price, 0.0),
            (self.free_samples, self._capacity_samples),
            (self.free_gib, self._capacity_gib),
            (self.full_costs, self._costs_from(first_slot + kept, passed)),
        ):
            cells[:kept] = cells[passed:]
            cells[kept:] = fresh
        self.first_slot = first_slot

    def operational(self, demand: Demand) -> Floats:
        """e_ikt of one slot of the task per (slot, class), in whole micros, rounded up."""
        return cast(Floats, np.ceil(self.full_costs * demand.compute_share))

    def room(self) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Free samples and memory per cell, and which nodes are up."""
        return self.free_samples, self.free_gib, self.node_up

    def emptied(self) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """As `room`, if nothing were taken and no node were down."""
        slots = (self.horizon_slots, 1)
        samples, gib = np.tile(self._capacity_samples, slots), np.tile(self._capacity_gib, slots)
        return samples, gib, np.ones_like(self.node_up)

    def has_room(self, placement: Placement, demand: Demand) -> bool:
        """Whether every cell of a placement is on a node that is up and has room for the task."""
        return all(
            self.node_up[row]
            and self.free_samples[column, row] >= demand.samples[index]
            and self.free_gib[column, row] >= demand.memory_gib
            for column, row, index in self._cells(placement)
        )

    def reserve(self, placement: Placement, demand: Demand) -> None:
        """Take the room of a placement.

        Raises:
            ValueError: if a cell lacks the room; nothing is taken then.
        """
        if not self.has_room(placement, demand):
            raise ValueError(f"slots {placement.slots} on rows {placement.rows} have no room for the task")
        for column, row, index in self._cells(placement):
            self.free_samples[column, row] -= demand.samples[index]
            self.free_gib[column, row] -= demand.memory_gib

    def release(self, placement: Placement, demand: Demand) -> None:
        """Give back the room of a placement; slots before the window are left alone. Prices stay (they never
        fall)."""
        for column, row, index in self._cells(placement):
            if column >= 0:
                self.free_samples[column, row] += demand.samples[index]
                self.free_gib[column, row] += demand.memory_gib

    def raise_prices(
        self, placement: Placement, demand: Demand, density_micros: float, alpha: float, beta: float
    ) -> list[float]:
        """Apply Eqs. 7 and 8 to the cells of a placement, with `density_micros` for b-bar.

        Returns:
            Every rise, in micros per node-slot: what the dual objective grows by.
        """
        rises: list[float] = []
        for column, row, index in self._cells(placement):
            for price, share, factor in (
                (self.compute_price, float(demand.compute_share[index]), alpha),
                (self.memory_price, float(demand.memory_share[index]), beta),
            ):
                rise = float(price[column, row]) * share + factor * density_micros * share
                price[column, row] += rise
                rises.append(rise)
        return rises

    def state(self) -> dict[str, Any]:
        """Everything that changes, of types that msgpack writes."""
        return {
            "first_slot": self.first_slot,
            "node_up": self.node_up.tobytes(),
            **{name: getattr(self, name).tobytes() for name in _CELL_ARRAYS},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state of a market of the same fleet and horizon."""
        self.first_slot = state["first_slot"]
        self.node_up[:] = np.frombuffer(state["node_up"], np.bool_)
        for name in _CELL_ARRAYS:
            cells = getattr(self, name)
            cells[:] = np.frombuffer(state[name], "<f8").reshape(cells.shape)
        self.full_costs = self._costs_from(self.first_slot, self.horizon_slots)

    def _cells(self, placement: Placement) -> list[tuple[int, int, int]]:
        """(column, row, class) of each cell."""
        return [
            (slot - self.first_slot, row, self.fleet.class_of_row[row])
            for slot, row in zip(placement.slots, placement.rows, strict=True)
        ]

    def _costs_from(self, first_slot: int, slots: int) -> Floats:
        return np.array(
            [
                [self._full_cost(index, first_slot + ahead) for index in range(len(self.fleet.classes))]
                for ahead in range(slots)
            ]
        ).reshape(slots, len(self.fleet.classes))


_CELL_ARRAYS = ("compute_price", "memory_price", "free_samples", "free_gib")
