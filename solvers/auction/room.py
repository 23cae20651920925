"""Why a task finds no plan: what its cells lack, and the earliest deadline that would do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from solvers.auction.cells import count_room, slots_until_done
from solvers.auction.demand import Demand
from solvers.auction.market import Market
from solvers.auction.window import VendorOption

Binding = Literal["time", "nodes", "compute", "memory", "none"]


@dataclass(frozen=True)
class RoomCount:
    """Cells of a task's window on classes that could run it, each counted once."""

    with_room: int
    node_down: int
    without_compute: int
    without_memory: int

    @property
    def cells(self) -> int:
        """All of them."""
        return self.with_room + self.node_down + self.without_compute + self.without_memory


def room_for(market: Market, demand: Demand, first_slot: int, last_slot: int) -> RoomCount:
    """Count the window's cells by what stands in the way there."""
    first = min(max(first_slot - market.first_slot, 0), market.horizon_slots)
    stop = min(max(last_slot - market.first_slot + 1, first), market.horizon_slots)
    return RoomCount(*count_room(market.cells(first, stop), demand))


def binding(demand: Demand, room: RoomCount, slots: int, found: bool) -> Binding:
    """What stands in the way of a plan first; `time` where even an empty zone could not meet the deadline."""
    if found:
        return "none"
    if int(demand.samples.max()) * max(slots, 0) < demand.work_samples:
        return "time"
    shortages: list[tuple[int, Binding]] = [
        (room.node_down, "nodes"),
        (room.without_compute, "compute"),
        (room.without_memory, "memory"),
    ]
    most, name = max(shortages, key=lambda shortage: shortage[0])
    return name if most else "time"


def earliest_last_slot(market: Market, demand: Demand, options: Sequence[VendorOption]) -> int | None:
    """The earliest last slot by which the work could be done in the room there is, whatever it costs."""
    if not options:
        return None
    delay = min(option.delay_slots for option in options)
    if delay >= market.horizon_slots:
        return None
    slots = slots_until_done(market.cells(delay, market.horizon_slots), demand)
    return None if slots < 0 else market.first_slot + delay + slots - 1
