"""Offers: options that may become columns of the task merger's program, by their reduced costs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.merging.commands import TransferMode
from schemas.merging.problems import MergeProblem
from solvers.compiled import Floats, Ints
from solvers.merging.options import PlanOptions
from solvers.merging.program import Column

_NO_UNIT = -1
_MOST_PER_UNIT = 8
"""Most offers with the same first unit, and most with the same second unit, if not all offers can be columns.
The cheapest offers all have the same few units, and each unit can be in one column only."""
_MOST_OFFERS = 1_000_000
_NEIGHBOURS = 3
"""Largest difference in rank of a donor and the receivers offered to it. The possible receivers of a merge
differ only in their waiting time, so an exchange of the receivers of two donors does not change the cost."""


@dataclass(frozen=True)
class UnitPrices:
    """Prices of units and GPUs."""

    gpu: float
    """Price of a GPU, in slowdown."""
    units: Floats
    """Cost of each unit at that price with its best option alone, (units,)."""


OFFER = np.dtype(
    [
        ("first", np.int64),
        ("second", np.int64),
        ("gpus", np.int64),
        ("saving", np.float64),
        ("reduced", np.float64),
        ("is_spatial", np.bool_),
        ("is_present", np.bool_),
    ]
)
"""Offer of GPUs for the unit `first`, or for two merged units: then `first` is the donor and `second` the
receiver, which is -1 otherwise. `saving`: reduction of cost against waiting. `reduced`: cost, GPUs included,
above that of the best options of its units alone. `is_present`: whether it is the present allocation."""


@dataclass(frozen=True)
class Offers:
    """Offers that may become columns."""

    rows: NDArray[np.void]
    """Offers, (offers,) of `OFFER`."""
    is_all: bool
    """Whether every offer that is better than waiting is among the rows."""

    def cheapest(self, count: int) -> "Offers":
        """Return the present allocation, and of the other offers those of the smallest reduced costs, only a
        few per unit, in their order.

        Half of them are the cheapest offers of each unit. Otherwise, where many units are alike, the offers
        of one unit would leave no room for the offers of the next.
        """
        reduced = np.where(self.rows["is_present"], -np.inf, self.rows["reduced"])
        order = np.argsort(reduced, kind="stable")
        if order.size > count:
            order = order[_few_of_each(self.rows["first"], self.rows["second"], reduced)[order]]
            is_best = _ranks(self.rows["first"], reduced)[order] == 0
            best = order[is_best][: count // 2]
            order = np.r_[best, order[~np.isin(order, best)]]
        is_all = self.is_all and min(order.size, count) == self.rows.size
        return Offers(self.rows[np.sort(order[:count])], is_all)

    def only(self, kept: NDArray[np.bool_]) -> "Offers":
        """Return the offers that are kept, and the present allocation."""
        return Offers(self.rows[kept | self.rows["is_present"]], False)

    def with_more(self, others: "Offers") -> "Offers":
        """Return the union of both offers."""
        rows = np.concatenate([self.rows, others.rows])
        _, first = np.unique(rows[["first", "second", "gpus", "is_spatial"]], return_index=True)
        return Offers(rows[np.sort(first)], others.is_all)

    def if_waited(self, waiting: Floats) -> Floats:
        """Return the cost of waiting of the units of each offer together, (offers,)."""
        return np.asarray(waiting[self.rows["first"]] + np.r_[waiting, 0.0][self.rows["second"]])

    def columns(self) -> list[Column]:
        """Return the offers as columns of the program."""
        return [
            Column((first,) if second == _NO_UNIT else (first, second), gpus, saving, is_present)
            for first, second, gpus, saving, _, _, is_present in self.rows.tolist()
        ]

    def mode(self, index: int) -> TransferMode:
        """Return the transfer mode of the jobs of an offer."""
        if self.rows["is_spatial"][index]:
            return "spatial"
        return "normal" if self.rows["second"][index] == _NO_UNIT else "temporal"


def _offers(first: Ints, second: Ints, gpus: Ints, saving: Floats, reduced: Floats) -> NDArray[np.void]:
    rows = np.zeros(first.size, OFFER)
    rows["first"], rows["second"], rows["gpus"] = first, second, gpus
    rows["saving"], rows["reduced"] = saving, reduced
    return rows


def offers_of(problem: MergeProblem, options: PlanOptions, prices: UnitPrices, count: int) -> Offers:
    """Return offers that are better than waiting, at least the `count` of the smallest reduced costs."""
    possible = _possible_pairs(problem, options)
    merges, partners = _pairs(problem, options, prices, count, is_every=possible <= count)
    is_offered = _offered_alone(problem, options, prices)
    alone = _alone(problem, options, prices, is_offered)
    sizes = _sizes_of_rows(options, prices, merges.size)
    merged = _merged(problem, options, prices, merges, partners, sizes)
    is_all = not options.merges.left_out and merges.size == possible
    is_all &= sizes.shape[1] == options.gpus.size
    is_all &= np.count_nonzero(is_offered) == np.count_nonzero(options.alone < options.waiting[:, None])
    return Offers(np.concatenate([alone, merged]), bool(is_all))


def _offered_alone(problem: MergeProblem, options: PlanOptions, prices: UnitPrices) -> NDArray[np.bool_]:
    """Return which numbers of GPUs are better than waiting, (units, sizes). If they are very many, only the
    present number of each unit and the few that are cheapest at the price."""
    is_better = np.asarray(options.alone < options.waiting[:, None])
    if is_better.size <= _MOST_OFFERS or is_better.shape[1] <= _MOST_PER_UNIT:
        return is_better
    reduced = options.alone + prices.gpu * options.gpus
    limit = np.partition(reduced, _MOST_PER_UNIT - 1, axis=1)[:, _MOST_PER_UNIT - 1]
    is_present = options.gpus == _present_gpus(problem)[:, None]
    return np.asarray(is_better & ((reduced <= limit[:, None]) | is_present))


def _possible_pairs(problem: MergeProblem, options: PlanOptions) -> int:
    """Count the pairs of a merge and a job that may be its receiver."""
    fresh = np.zeros(len(problem.kinds), np.int64)
    for unit in problem.units:
        fresh[unit.kind] += unit.part == "any"
    receivers = np.array([transfer.receiver for transfer in problem.transfers], np.int64)
    own = np.array([unit.kind if unit.part == "any" else _NO_UNIT for unit in problem.units], np.int64)
    of_merges = receivers[options.merges.transfer] if options.merges.donor.size else options.merges.donor
    return int(fresh[of_merges].sum() - np.count_nonzero(own[options.merges.donor] == of_merges))


def _alone(
    problem: MergeProblem, options: PlanOptions, prices: UnitPrices, is_offered: NDArray[np.bool_]
) -> NDArray[np.void]:
    units, sizes = np.nonzero(is_offered)
    cost, gpus = options.alone[units, sizes], options.gpus[sizes]
    rows = _offers(
        units,
        np.full(units.size, _NO_UNIT),
        gpus,
        saving=options.waiting[units] - cost,
        reduced=cost + prices.gpu * gpus - prices.units[units],
    )
    rows["is_spatial"] = np.array([len(unit.job_ids) == 2 for unit in problem.units])[units]
    leads = np.array([unit.follower is not None for unit in problem.units])[units]
    rows["is_present"] = (gpus == _present_gpus(problem)[units]) & ~leads
    return rows


def _sizes_of_rows(options: PlanOptions, prices: UnitPrices, pairs: int) -> Ints:
    """Return the indices of the numbers of GPUs to offer merges with, (rows, sizes offered): all, or, if that
    were very many offers, those that are cheapest at the price, the cheapest first."""
    rows, sizes = options.merges.cost.shape
    if pairs * sizes <= _MOST_OFFERS or sizes <= _MOST_PER_UNIT:
        return np.broadcast_to(np.arange(sizes), (rows, sizes))
    reduced = options.merges.cost + prices.gpu * options.gpus
    cheapest = np.argpartition(reduced, _MOST_PER_UNIT - 1, axis=1)[:, :_MOST_PER_UNIT]
    order = np.argsort(np.take_along_axis(reduced, cheapest, axis=1), axis=1)
    return np.take_along_axis(cheapest, order, axis=1)


def _merged(
    problem: MergeProblem,
    options: PlanOptions,
    prices: UnitPrices,
    merges: Ints,
    partners: Ints,
    sizes_of_rows: Ints,
) -> NDArray[np.void]:
    """Return rows of the merges, each with a receiver and the sizes offered, with present merges."""
    donors, costs = options.merges.donor[merges], options.merges.row[merges]
    modes = np.array([transfer.mode == "spatial" for transfer in problem.transfers], np.bool_)
    is_spatial = modes[options.merges.transfer[merges]]
    follows = (_followers(problem)[donors] == partners) & ~is_spatial
    present_gpus = _present_gpus(problem)[donors]
    offered = _with_present(options, sizes_of_rows[costs], np.where(follows, present_gpus, 0))
    is_present = follows[:, None] & (options.gpus[offered] == present_gpus[:, None])
    switch = np.where(is_present, 0.0, options.merges.switch[costs][:, None])
    cost = options.merges.cost[costs[:, None], offered] + switch
    waiting = options.waiting[donors] + options.waiting[partners]
    values = prices.units[donors] + prices.units[partners]
    pairs, sizes = np.nonzero(cost < waiting[:, None])
    cost, gpus = cost[pairs, sizes], options.gpus[offered[pairs, sizes]]
    rows = _offers(
        donors[pairs],
        partners[pairs],
        gpus,
        saving=waiting[pairs] - cost,
        reduced=cost + prices.gpu * gpus - values[pairs],
    )
    rows["is_spatial"], rows["is_present"] = is_spatial[pairs], is_present[pairs, sizes]
    return rows


def _with_present(options: PlanOptions, offered: Ints, present_gpus: Ints) -> Ints:
    """Replace the most expensive size by the present number of GPUs if missing, (pairs, sizes offered).

    Args:
        present_gpus: (pairs,) 0 for a merge that is not under way.
    """
    places = np.searchsorted(options.gpus, present_gpus)
    places = np.minimum(places, options.gpus.size - 1)
    is_missing = (options.gpus[places] == present_gpus) & ~(offered == places[:, None]).any(axis=1)
    if is_missing.any():
        offered[is_missing, -1] = places[is_missing]
    return offered


def _present_gpus(problem: MergeProblem) -> Ints:
    return np.array([unit.gpus for unit in problem.units], np.int64)


def _followers(problem: MergeProblem) -> Ints:
    """Return the present receiver of each unit, or `_NO_UNIT`, (units,)."""
    numbers = {unit.job_ids[0]: number for number, unit in enumerate(problem.units)}
    return np.array([numbers.get(unit.follower or "", _NO_UNIT) for unit in problem.units], np.int64)


def _pairs(
    problem: MergeProblem, options: PlanOptions, prices: UnitPrices, count: int, is_every: bool
) -> tuple[Ints, Ints]:
    """Return merges and their receivers, (pairs,): all, or the present ones and those of the smallest reduced
    costs at the best number of GPUs.

    As many pairs as requested offers are enough: each has at least one offer.
    """
    merges = options.merges
    if not merges.donor.size:
        return merges.donor, merges.donor
    by_row = (merges.cost + prices.gpu * options.gpus).min(axis=1)
    least = by_row[merges.row] - prices.units[merges.donor]
    fresh, starts = _fresh_by_kind(problem, prices)
    receivers = np.array([transfer.receiver for transfer in problem.transfers], np.int64)[merges.transfer]
    if is_every:
        return _all_pairs(merges.donor, receivers, fresh, starts)
    rank = _ranks(merges.transfer, least)
    chosen = np.flatnonzero(rank < problem.gpus)
    if chosen.size > count:
        # Bound: with the job of the receiving kind that costs most otherwise.
        at_best = least[chosen] - _dearest(prices, fresh, starts)[receivers[chosen]]
        chosen = chosen[_ranks(merges.donor[chosen], at_best) < _MOST_PER_UNIT]
    near = rank[chosen, None] + np.arange(-_NEIGHBOURS, _NEIGHBOURS + 1)
    first, end = starts[receivers[chosen]], starts[receivers[chosen] + 1]
    is_there = (near >= 0) & (near < (end - first)[:, None])
    partners = fresh[np.where(is_there, first[:, None] + near, 0)]
    is_there &= partners != merges.donor[chosen, None]
    at, which = np.nonzero(is_there)
    offered, partners = chosen[at], partners[at, which]
    reduced = least[offered] - prices.units[partners] + merges.switch[merges.row[offered]]
    if reduced.size > count:
        few = np.flatnonzero(_few_of_each(merges.donor[offered], partners, reduced))
        best = np.sort(few[np.argsort(reduced[few], kind="stable")[:count]])
        offered, partners = offered[best], partners[best]
    now, followers = _present(problem, options, receivers)
    pairs = np.unique(np.array([np.append(offered, now), np.append(partners, followers)]), axis=1)
    return pairs[0], pairs[1]


def _all_pairs(donors: Ints, receivers: Ints, fresh: Ints, starts: Ints) -> tuple[Ints, Ints]:
    """Return merges, each with every possible receiver, (pairs,)."""
    counts = starts[receivers + 1] - starts[receivers]
    merges = np.repeat(np.arange(donors.size), counts)
    places = np.arange(merges.size) - np.repeat(np.cumsum(counts) - counts, counts)
    partners = fresh[starts[receivers[merges]] + places]
    is_other = partners != donors[merges]
    return merges[is_other], partners[is_other]


def _present(problem: MergeProblem, options: PlanOptions, receivers: Ints) -> tuple[Ints, Ints]:
    """Return present merges and their receivers, (pairs,)."""
    followers = _followers(problem)[options.merges.donor]
    kinds = np.array([unit.kind for unit in problem.units], np.int64)
    may_receive = np.array([unit.part == "any" for unit in problem.units])
    is_now = (followers != _NO_UNIT) & (followers != options.merges.donor)
    is_now &= (kinds[followers] == receivers) & may_receive[followers]
    now = np.flatnonzero(is_now)
    return now, followers[now]


def _few_of_each(first: Ints, second: Ints, reduced: Floats) -> NDArray[np.bool_]:
    """Return whether each offer is among the cheapest of its first unit, and of its second one, (offers,)."""
    is_few = _ranks(first, reduced) < _MOST_PER_UNIT
    merged = np.flatnonzero(second != _NO_UNIT)
    is_few[merged] &= _ranks(second[merged], reduced[merged]) < _MOST_PER_UNIT
    return is_few


def _ranks(groups: Ints, values: Floats) -> Ints:
    """Return the rank of each value in its group, from 0, the smallest first."""
    if not groups.size:
        return groups
    order = np.lexsort((values, groups))
    ordered = groups[order]
    is_first = np.r_[True, ordered[1:] != ordered[:-1]]
    places = np.arange(order.size)
    ranks = np.empty_like(order)
    ranks[order] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return ranks


def _dearest(prices: UnitPrices, fresh: Ints, starts: Ints) -> Floats:
    """Return the cost otherwise of the first receiver of each kind, 0 without one, (kinds,)."""
    dearest = np.zeros(starts.size - 1)
    there = starts[:-1] < starts[1:]
    dearest[there] = prices.units[fresh[starts[:-1][there]]]
    return dearest


def _fresh_by_kind(problem: MergeProblem, prices: UnitPrices) -> tuple[Ints, Ints]:
    """Return possible receivers, kind after kind, those that cost most otherwise first; and the index where
    each kind begins, (kinds + 1,)."""
    fresh = np.array([index for index, unit in enumerate(problem.units) if unit.part == "any"], np.int64)
    kinds = np.array([problem.units[index].kind for index in fresh.tolist()], np.int64)
    order = np.lexsort((-prices.units[fresh], kinds))
    starts = np.searchsorted(kinds[order], np.arange(len(problem.kinds) + 1))
    return fresh[order], starts
