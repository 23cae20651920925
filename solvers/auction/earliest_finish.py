"""The earliest finish of one task: what EFT and NTM do with it (section 5.1)."""

import numpy as np

from solvers.arrays import Ints
from solvers.auction.cells import Cells
from solvers.auction.counts import NO_CHOICE
from solvers.auction.demand import Demand
from solvers.auction.market import Market, placement_of
from solvers.auction.search import Schedule, describe
from solvers.auction.window import VendorOption
from solvers.compiled import kernel


def earliest_schedule(
    market: Market, demand: Demand, columns: slice, option: VendorOption
) -> Schedule | None:
    """The plan that is done first of those that start after a vendor's delay; None where none is in time.

    Slot by slot it takes the fastest class of nodes that has room, and of its nodes the fullest one with room
    (the least compute free, then the least memory; ties by row), so that large tasks still find nodes.
    """
    found, rows = _earliest_rows(market.cells(columns.start, columns.stop), demand, option.delay_slots)
    if not found:
        return None
    return describe(market, demand, option, placement_of(rows, market.first_slot + columns.start))


@kernel
def _earliest_rows(cells: Cells, demand: Demand, first_slot: int) -> tuple[bool, Ints]:
    """Whether the work is done in time, and (slots,) node rows or `NO_CHOICE`."""
    slots = cells.free_samples.shape[0]
    rows = np.full(slots, NO_CHOICE, np.int64)
    done = 0
    for slot in range(first_slot, slots):
        possible = 0
        for index in range(cells.class_bounds.size - 1):
            if demand.samples[index] <= possible:
                continue
            row = _fullest(cells, demand, slot, index)
            if row != NO_CHOICE:
                possible, rows[slot] = demand.samples[index], row
        done += possible
        if done >= demand.work_samples:
            return True, rows
    return False, rows


@kernel
def _fullest(cells: Cells, demand: Demand, slot: int, index: int) -> int:
    best = NO_CHOICE
    least = (np.inf, np.inf)
    for row in range(cells.class_bounds[index], cells.class_bounds[index + 1]):
        free = (cells.free_samples[slot, row], cells.free_gib[slot, row])
        if (
            cells.node_up[row]
            and free[0] >= demand.samples[index]
            and free[1] >= demand.memory_gib
            and free < least
        ):
            best, least = row, free
    return best
