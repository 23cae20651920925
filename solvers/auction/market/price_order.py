"""Nodes of each slot in order of price, kept up to date, so that a search reads only the cheapest few.

The order follows from the prices, so it does not affect decisions and is in no snapshot.
"""

import numpy as np

from solvers.compiled import Floats, Ints, kernel


class PriceOrder:
    """Rows of each slot and class, from the lowest compute price to the highest."""

    def __init__(self, class_bounds: Ints, compute_price: Floats, memory_price: Floats) -> None:
        """Sort the rows by the prices, of shape (slots, rows); both arrays are read again later."""
        self._class_bounds = class_bounds
        self._compute_price = compute_price
        self._memory_price = memory_price
        self.rows = np.empty(compute_price.shape, np.int64)
        """Rows by compute price, memory price and number within each class's bounds, (slots, rows)."""
        self.memory_ahead = np.empty(compute_price.shape)
        """Least memory price from this index in `rows` to the end of its class, (slots, rows)."""
        self.sort(0)

    def sort(self, first_column: int) -> None:
        """Sort the slots from `first_column` on again."""
        for index in range(self._class_bounds.size - 1):
            begin, end = self._class_bounds[index], self._class_bounds[index + 1]
            compute = self._compute_price[first_column:, begin:end]
            memory = self._memory_price[first_column:, begin:end]
            order = np.lexsort(np.array((memory, compute)))
            self.rows[first_column:, begin:end] = begin + order
            sorted_memory = np.take_along_axis(memory, order, axis=1)
            self.memory_ahead[first_column:, begin:end] = np.minimum.accumulate(
                sorted_memory[:, ::-1], axis=1
            )[:, ::-1]

    def advance(self, passed_slots: int) -> None:
        """Update the order after the window has moved by so many slots."""
        kept = len(self.rows) - passed_slots
        self.rows[:kept] = self.rows[passed_slots:]
        self.memory_ahead[:kept] = self.memory_ahead[passed_slots:]
        self.sort(kept)

    def rise(self, columns: Ints, rows: Ints, classes: Ints) -> None:
        """Update the order after the prices of some node-slots, one per slot, have risen."""
        _move_risen(
            self._compute_price,
            self._memory_price,
            self._class_bounds,
            self.rows,
            self.memory_ahead,
            columns,
            rows,
            classes,
        )


@kernel
def _move_risen(
    compute_price: Floats,
    memory_price: Floats,
    class_bounds: Ints,
    order: Ints,
    memory_ahead: Floats,
    columns: Ints,
    rows: Ints,
    classes: Ints,
) -> None:
    for risen in range(columns.size):
        slot, row, index = columns[risen], rows[risen], classes[risen]
        begin, end = class_bounds[index], class_bounds[index + 1]
        place = begin
        while order[slot, place] != row:
            place += 1
        mine = (compute_price[slot, row], memory_price[slot, row], row)
        while place + 1 < end:
            after = order[slot, place + 1]
            if mine < (compute_price[slot, after], memory_price[slot, after], after):
                break
            order[slot, place] = after
            place += 1
        order[slot, place] = row
        least = np.inf
        for place in range(end - 1, begin - 1, -1):
            least = min(least, memory_price[slot, order[slot, place]])
            memory_ahead[slot, place] = least
