"""A plan that is there at once: the program starts from it, and it stands where time ends the program.

Columns are taken in an order, as long as their units are free and GPUs are left; then each that saves more
than those in its place. How things are now is one such order, so that no plan is worse than that.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from solvers.merging.program import Column

_PRICES = 6
"""That are tried where nothing tells which columns are likely."""


def incumbent(columns: Sequence[Column], gpus: int, likely: Sequence[int]) -> tuple[int, ...]:
    """Indices of columns that can be chosen together, ascending.

    Args:
        columns: each with a saving above 0.
        gpus: that there are.
        likely: indices of all columns, those first that are likely in a good plan; empty where nothing tells.
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
        # By what they save beyond a price per GPU. Which one is right is not known.
        for price in (0.0, *np.quantile(per_gpu, np.linspace(0.0, 1.0, _PRICES - 1)).tolist()):
            worth = savings - price * sizes
            order = np.argsort(-worth, kind="stable")
            orders.append([*order[worth[order] > 0.0].tolist(), *by_rate])
    plans = [_Plan(columns, gpus).filled(order, by_rate) for order in orders]
    best = max(plans, key=lambda plan: plan.saving)
    return tuple(sorted(best.chosen))


class _Plan:
    """Columns that were chosen, and what is left."""

    def __init__(self, columns: Sequence[Column], gpus: int) -> None:
        self._columns = columns
        self._left = gpus
        self._of_unit: dict[int, int] = {}
        self.chosen: set[int] = set()

    @property
    def saving(self) -> float:
        return sum(self._columns[index].saving for index in sorted(self.chosen))

    def filled(self, order: Iterable[int], by_rate: Sequence[int]) -> "_Plan":
        """What fits of columns in an order, and then each one that is better than those in its place."""
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
