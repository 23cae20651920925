"""Plan that is found at once: the program starts from it, and it is the result if time ends the program.

Columns are taken in an order, as long as their units are free and GPUs are left. Then a column replaces
others if it saves more. The present allocation is one such order, so the plan is never worse than that.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from solvers.merging.program import Column

_PRICES = 6
"""Number of prices tried without information on likely columns."""


def incumbent(columns: Sequence[Column], gpus: int, likely: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of columns that can be chosen together, ascending.

    Args:
        columns: each with a saving above 0.
        gpus: number of all GPUs.
        likely: indices of all columns, those likely in a good plan first; empty if unknown.
    """
    if not columns:
        return ()
    savings = np.array([column.saving for column in columns])
    sizes = np.array([column.gpus for column in columns], np.float64)
    per_gpu = savings / sizes
    by_rate = np.argsort(-per_gpu, kind="stable").tolist()
    present = [index for index, column in enumerate(columns) if column.is_present]
    orders: list[Sequence[int]] = [[*present, *(likely or by_rate)]]
    if likely:
        orders.append(likely)
    else:
        # By their saving beyond a price per GPU. The right price is unknown.
        for price in (0.0, *np.quantile(per_gpu, np.linspace(0.0, 1.0, _PRICES - 1)).tolist()):
            worth = savings - price * sizes
            order = np.argsort(-worth, kind="stable")
            orders.append([*order[worth[order] > 0.0].tolist(), *by_rate])
    plans = [_Plan(columns, gpus).filled(order, by_rate) for order in orders]
    best = max(plans, key=lambda plan: plan.saving)
    return tuple(sorted(best.chosen))


class _Plan:
    """Columns chosen, and the GPUs left."""

    def __init__(self, columns: Sequence[Column], gpus: int) -> None:
        self._columns = columns
        self._left = gpus
        self._of_unit: dict[int, int] = {}
        self.chosen: set[int] = set()

    @property
    def saving(self) -> float:
        return sum(self._columns[index].saving for index in sorted(self.chosen))

    def filled(self, order: Iterable[int], by_rate: Sequence[int]) -> "_Plan":
        """Return the plan of columns that fit in an order, improved by columns that replace others."""
        for index in order:
            column = self._columns[index]
            if column.gpus <= self._left and all(unit not in self._of_unit for unit in column.units):
                self._take(index)
        for index in by_rate:
            column = self._columns[index]
            instead = {self._of_unit[unit] for unit in column.units if unit in self._of_unit}
            freed = sum(self._columns[other].gpus for other in instead)
            worth = sum(self._columns[other].saving for other in instead)
            if index not in instead and column.gpus <= self._left + freed and column.saving > worth:
                for other in instead:
                    self._drop(other)
                self._take(index)
        return self

    def _take(self, index: int) -> None:
        column = self._columns[index]
        self._left -= column.gpus
        self._of_unit.update(dict.fromkeys(column.units, index))
        self.chosen.add(index)

    def _drop(self, index: int) -> None:
        column = self._columns[index]
        self._left += column.gpus
        for unit in column.units:
            del self._of_unit[unit]
        self.chosen.discard(index)
