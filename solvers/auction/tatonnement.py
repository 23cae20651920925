"""Prices adjusted round by round: what too much is asked for gets dearer, what too little, cheaper."""

import math
from collections.abc import Sequence

import numpy as np

from solvers.arrays import Floats
from solvers.auction.instance import OfferedTask

_FIRST_STEP = 1.0
"""By how much of a typical price the first round moves that of what nobody asks for, or twice too many."""
_MOST_EXCESS = 3.0
"""Of demand over what there is: where tasks have few nodes to flock to, prices would leap far too high."""
_KEPT_DIRECTION = 0.7
"""Part of the last round's direction that goes on: tasks flock from one cheap slot to the next."""


class Tatonnement:
    """Prices per node-slot in micros, arrays of shape (2, slots, classes): of compute, and of memory."""

    def __init__(self, shape: tuple[int, int, int], tasks: Sequence[OfferedTask]) -> None:
        """Prices of zero, to be moved in steps of what these tasks offer."""
        self.prices = np.zeros(shape)
        self.mean = np.zeros(shape)
        """Of the rounds' prices, which go to and fro around the ones sought. The first rounds are far away,
        and soon forgotten."""
        self._typical_micros = _typical_price_micros(tasks)
        self._direction = np.zeros(shape)
        self._rounds = 0

    def adjust(self, asked: Floats) -> None:
        """Move every price by what is asked for at the present ones, in parts of what there is."""
        self._rounds += 1
        excess = np.minimum(asked - 1, _MOST_EXCESS)
        self._direction = _KEPT_DIRECTION * self._direction + (1 - _KEPT_DIRECTION) * excess
        step_micros = _FIRST_STEP * self._typical_micros / math.sqrt(self._rounds)
        self.prices = np.maximum(self.prices + step_micros * self._direction, 0.0)
        part = 3 / (self._rounds + 2)
        self.mean = (1 - part) * self.mean + part * self.prices


def _typical_price_micros(tasks: Sequence[OfferedTask]) -> float:
    """The middle of what the bids offer per node-slot, on whichever class takes least of it."""
    offers = [task.bid_micros / task.demand.least_node_slots() for task in tasks]
    return float(np.median(offers)) if offers else 0.0
