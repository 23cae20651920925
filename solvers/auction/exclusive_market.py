"""A market whose nodes train one task at a time (NTM, section 5.1)."""

import numpy as np

from solvers.auction.cells import Cells
from solvers.auction.demand import Demand
from solvers.auction.market import Market, Placement


class ExclusiveMarket(Market):
    """Only cells that are wholly empty have room. Every task takes some samples of each of its cells."""

    def cells(self, start: int, stop: int) -> Cells:
        cells = super().cells(start, stop)
        empty = cells.free_samples == self._capacity_samples
        return cells._replace(free_samples=np.where(empty, cells.free_samples, 0.0))

    def has_room(self, placement: Placement, demand: Demand) -> bool:
        columns, rows, _ = self.locate(placement)
        empty = self.free_samples[columns, rows] == self._capacity_samples[rows]
        return bool(empty.all()) and super().has_room(placement, demand)
