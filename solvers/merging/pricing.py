"""First prices of GPUs and units, before the program is solved, and the bounds that prices prove.

A price per GPU replaces the number of GPUs (Lagrangian relaxation of Eq. 11): each unit then chooses for
itself.
"""

import math

import numpy as np

from schemas.merging.problems import MergeProblem
from solvers.merging.offers import UnitPrices
from solvers.merging.options import Floats, PlanOptions

_PRICE_OF_MERGES = 2.0
"""Factor of the price where units can be merged: each GPU then serves more of them."""
_PRICE_STEPS = 40
_BOUNDING_PRICES = (0.0, 0.25, 0.5, 1.0, 1.25)
"""Multiples of the price at which bounds are computed. All are valid; the best depends on the merges."""


def first_prices(options: PlanOptions, gpus: int) -> tuple[UnitPrices, UnitPrices]:
    """Return the price at which units, each for itself, request no more GPUs than there are; and the price
    for the first choice of columns, which is higher if units can be merged."""
    low, high = 0.0, max(float(options.waiting.max(initial=0.0)), 1.0)
    for _ in range(_PRICE_STEPS):
        price = (low + high) / 2
        _, asked = _best_alone(options, price)
        low, high = (price, high) if asked > gpus else (low, price)
    dearer = high * (_PRICE_OF_MERGES if options.merges.donor.size else 1.0)
    return _at(options, high), _at(options, dearer)


def first_bound(options: PlanOptions, problem: MergeProblem, prices: UnitPrices) -> float:
    """Return a lower bound on the objective of every plan, from prices near these; at least 0."""
    bounds = (bound_at(options, problem, _at(options, factor * prices.gpu)) for factor in _BOUNDING_PRICES)
    return max(0.0, *bounds)


def bound_at(options: PlanOptions, problem: MergeProblem, prices: UnitPrices) -> float:
    """Return a lower bound on the objective of every plan, from a price per GPU and values of units.

    If no unit alone, and no two merged, cost less than their values, GPUs included, then the sum of values
    less the price of all GPUs is a bound. So each value is lowered to the cost of its unit alone. Where two
    merged units cost less than their values, both values are lowered by half of the difference.
    """
    merges = options.merges
    if merges.left_out:
        return 0.0
    own = np.minimum(prices.units, _best_alone(options, prices.gpu)[0])
    values = own.copy()
    if merges.donor.size:
        least = (merges.cost + prices.gpu * options.gpus).min(axis=1)[merges.row]
        receivers = np.array([transfer.receiver for transfer in problem.transfers], np.int64)[merges.transfer]
        highest = np.full(len(problem.kinds), -np.inf)
        fresh = np.array([unit.part == "any" for unit in problem.units])
        kinds = np.array([unit.kind for unit in problem.units], np.int64)
        np.maximum.at(highest, kinds[fresh], own[fresh])
        of_donors = np.zeros(len(values))
        np.maximum.at(of_donors, merges.donor, own[merges.donor] + highest[receivers] - least)
        of_receivers = np.full(len(problem.kinds), -np.inf)
        np.maximum.at(of_receivers, receivers, own[merges.donor] - least)
        as_receiver = np.where(fresh, own + of_receivers[kinds], 0.0)
        values -= np.maximum(np.maximum(of_donors, as_receiver), 0.0) / 2
    return math.fsum(values.tolist()) - prices.gpu * problem.gpus


def _at(options: PlanOptions, price: float) -> UnitPrices:
    return UnitPrices(price, _best_alone(options, price)[0])


def _best_alone(options: PlanOptions, price: float) -> tuple[Floats, int]:
    """Return the least cost of each unit, (units,), and the GPUs that they request together."""
    if not options.gpus.size:
        return options.waiting, 0
    costs = options.alone + price * options.gpus
    best = np.argmin(costs, axis=1)
    least = costs[np.arange(len(best)), best]
    runs = least < options.waiting
    return np.where(runs, least, options.waiting), int(options.gpus[best[runs]].sum())
