"""Prices of GPUs and units: the first ones, the bounds that prices prove, and growth on idle GPUs.

A price per GPU replaces the number of GPUs (Lagrangian relaxation of Eq. 11): each unit then chooses for
itself.

With very many numbers of GPUs, each unit is offered only a few of them, and those of all units need not add
up to all GPUs. So each share of a plan may grow to its best size at a price per GPU. The price is the least
at which all shares together request no more than the idle GPUs. The remaining idle GPUs go to shares that
would grow at a price just below, those with the largest gain per GPU first.
"""

import math

import numpy as np
from numpy.typing import NDArray

from schemas.merging.problems import MergeProblem
from solvers.compiled import Floats, Ints
from solvers.merging.offers import UnitPrices
from solvers.merging.options import PlanOptions

_PRICE_OF_MERGES = 2.0
"""Factor of the price where units can be merged: each GPU then serves more of them."""
_PRICE_STEPS = 40
_BOUNDING_PRICES = (0.0, 0.25, 0.5, 1.0, 1.25)
"""Multiples of the price at which bounds are computed. All are valid; the best depends on the merges."""

_MOST_CELLS = 1_000_000
"""Most shares times numbers of GPUs examined. If there are more, some numbers are left out, more of the
larger ones."""
_GROWTH_STEPS = 20


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


def grow_shares(problem: MergeProblem, options: PlanOptions, shares: NDArray[np.void]) -> NDArray[np.void]:
    """Return the shares of a plan, some with more GPUs; the plan never gets worse.

    Args:
        shares: (shares,) of `OFFER`. No two have a unit in common, and all fit together.
    """
    idle = problem.gpus - int(shares["gpus"].sum())
    if not shares.size or not idle:
        return shares
    sizes = _examined(options.gpus.size, shares.size)
    savings = _savings(problem, options, shares, sizes)
    more = options.gpus[sizes] - shares["gpus"][:, None]
    gains = np.where(more > 0, savings - shares["saving"][:, None], -np.inf)
    chosen = _grown_within(gains, more, idle)
    rows = shares.copy()
    (which,) = np.nonzero(chosen >= 0)
    rows["gpus"][which] = options.gpus[sizes[chosen[which]]]
    rows["saving"][which] = savings[which, chosen[which]]
    rows["is_present"][which] = False
    return rows


def _examined(sizes: int, shares: int) -> Ints:
    """Return the indices of the sizes examined, (sizes examined,)."""
    most = max(_MOST_CELLS // shares, 1)
    if sizes <= most:
        return np.arange(sizes)
    return np.unique(np.geomspace(1, sizes, most).astype(np.int64)) - 1


def _savings(problem: MergeProblem, options: PlanOptions, shares: NDArray[np.void], sizes: Ints) -> Floats:
    """Return the saving of each share, (shares, sizes examined). It is 0 for a merge under way at its present
    size, which alone needs no switch and is among the offers."""
    merges = options.merges
    costs = options.alone[np.ix_(shares["first"], sizes)]
    waiting = options.waiting[shares["first"]]
    merged = np.flatnonzero(shares["second"] >= 0)
    if not merged.size:
        return np.asarray(waiting[:, None] - costs)
    waiting[merged] += options.waiting[shares["second"][merged]]
    costs[merged] = np.inf
    # Each unit is the donor of one share at most.
    share_of = np.full(len(problem.units), -1)
    share_of[shares["first"][merged]] = merged
    at = share_of[merges.donor]
    kinds = np.array([unit.kind for unit in problem.units], np.int64)
    receivers = np.array([transfer.receiver for transfer in problem.transfers], np.int64)
    is_spatial = np.array([transfer.mode == "spatial" for transfer in problem.transfers], np.bool_)
    is_same = (at >= 0) & (kinds[shares["second"][at]] == receivers[merges.transfer])
    is_same &= shares["is_spatial"][at] == is_spatial[merges.transfer]
    same = np.flatnonzero(is_same)
    rows = merges.row[same]
    np.minimum.at(costs, at[same], merges.cost[np.ix_(rows, sizes)] + merges.switch[rows][:, None])
    now = np.array([unit.gpus if unit.follower else 0 for unit in problem.units])[shares["first"][merged]]
    costs[merged] = np.where(options.gpus[sizes] == now[:, None], np.inf, costs[merged])
    return np.asarray(waiting[:, None] - costs)


def _grown_within(gains: Floats, more: Ints, idle: int) -> Ints:
    """Return the column that each share grows to, -1 where it stays, (shares,)."""
    low, high = 0.0, float(np.max(gains / np.maximum(more, 1), initial=0.0))
    dear = np.full(len(gains), -1)
    cheap = _best(gains, more, low)
    if _asked(more, cheap) <= idle:
        return cheap
    for _ in range(_GROWTH_STEPS):
        price = (low + high) / 2
        best = _best(gains, more, price)
        if _asked(more, best) > idle:
            low, cheap = price, best
        else:
            high, dear = price, best
    idle -= _asked(more, dear)
    return _filled(gains, more, dear, cheap, idle)


def _best(gains: Floats, more: Ints, price: float) -> Ints:
    """Return the best column at a price per GPU, -1 where staying is best, (shares,)."""
    worth = gains - price * more
    best = np.argmax(worth, axis=1)
    return np.where(worth[np.arange(len(best)), best] > 0.0, best, -1)


def _of(values: Floats | Ints, chosen: Ints) -> NDArray[np.float64]:
    """Return the value in the chosen column, 0 without one, (shares,)."""
    return np.where(chosen >= 0, values[np.arange(len(chosen)), chosen], 0)


def _asked(more: Ints, chosen: Ints) -> int:
    return int(_of(more, chosen).sum())


def _filled(gains: Floats, more: Ints, dear: Ints, cheap: Ints, idle: int) -> Ints:
    """Combine the choices at the high price with those at the low price that still fit."""
    filled = dear.copy()
    gain = _of(gains, cheap) - _of(gains, dear)
    needed = _of(more, cheap) - _of(more, dear)
    gainful = np.flatnonzero((needed > 0) & (gain > 0.0))
    for share in gainful[np.argsort(-gain[gainful] / needed[gainful], kind="stable")].tolist():
        if needed[share] <= idle:
            idle -= int(needed[share])
            filled[share] = cheap[share]
    return filled
