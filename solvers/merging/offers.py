"""Which options may become columns of the task merger's program, in the order of their reduced costs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.merging.commands import TransferMode
from schemas.merging.problems import MergeProblem
from solvers.merging.options import Floats, Ints, Options
from solvers.merging.program import Column

_NOBODY = -1
_OF_EACH = 8
"""Where not all offers can be columns, so many at most have the same first unit, and so many the same second
one: the cheapest offers of all are those of few units, each of which can be in one only."""
_MANY = 1_000_000
_NEIGHBOURS = 3
"""Jobs that a merge may be with differ only in how long they have waited, so whether the first donor merges
with the first of them and the second with the second, or the other way round, costs the same. So a donor is
offered those whose rank is so near its own."""


@dataclass(frozen=True)
class Prices:
    """What units and GPUs are worth."""

    gpu: float
    """What a GPU costs, in slowdown."""
    units: Floats
    """(units,) what each unit costs at that price, by the best that it can do alone."""


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
"""So many GPUs for the unit `first`, or for two that are merged: then `first` is the donor and `second` the
receiver, which is -1 otherwise. `saving`: what it costs less than if its units waited. `reduced`: what it
costs more, GPUs included, than the best that its units can do alone. `is_present`: that is how things are."""


@dataclass(frozen=True)
class Offers:
    """What may become columns."""

    rows: NDArray[np.void]
    """(offers,) of `OFFER`."""
    is_all: bool
    """Whether there is no other offer that is better than waiting."""

    def cheapest(self, count: int) -> "Offers":
        """What is so now, and of the others those of the smallest reduced costs, of each unit no more than a
        few; in the order in which they are. Half of them are each the cheapest of its unit: where many units
        are alike, the offers of one would else leave no room for those of the next."""
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
        """Those that are kept, and what is so now."""
        return Offers(self.rows[kept | self.rows["is_present"]], False)

    def with_more(self, others: "Offers") -> "Offers":
        """These and the others, each once."""
        rows = np.concatenate([self.rows, others.rows])
        _, first = np.unique(rows[["first", "second", "gpus", "is_spatial"]], return_index=True)
        return Offers(rows[np.sort(first)], others.is_all)

    def if_waited(self, waiting: Floats) -> Floats:
        """(offers,) what it costs together that the units of each wait."""
        return np.asarray(waiting[self.rows["first"]] + np.r_[waiting, 0.0][self.rows["second"]])

    def columns(self) -> list[Column]:
        """As the program takes them."""
        return [
            Column((first,) if second == _NOBODY else (first, second), gpus, saving, is_present)
            for first, second, gpus, saving, _, _, is_present in self.rows.tolist()
        ]

    def mode(self, index: int) -> TransferMode:
        """How the jobs of an offer are trained."""
        if self.rows["is_spatial"][index]:
            return "spatial"
        return "normal" if self.rows["second"][index] == _NOBODY else "temporal"


def _offers(first: Ints, second: Ints, gpus: Ints, saving: Floats, reduced: Floats) -> NDArray[np.void]:
    rows = np.zeros(first.size, OFFER)
    rows["first"], rows["second"], rows["gpus"] = first, second, gpus
    rows["saving"], rows["reduced"] = saving, reduced
    return rows


def offers_of(problem: MergeProblem, options: Options, prices: Prices, count: int) -> Offers:
    """What is better than waiting: of all such offers at least the `count` of the smallest reduced costs."""
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


def _offered_alone(problem: MergeProblem, options: Options, prices: Prices) -> NDArray[np.bool_]:
    """(units, sizes) numbers of GPUs that are better than waiting. Where these are very many, of each unit
    only what it has now and the few that are cheapest at the price."""
    is_better = np.asarray(options.alone < options.waiting[:, None])
    if is_better.size <= _MANY or is_better.shape[1] <= _OF_EACH:
        return is_better
    reduced = options.alone + prices.gpu * options.gpus
    limit = np.partition(reduced, _OF_EACH - 1, axis=1)[:, _OF_EACH - 1]
    is_present = options.gpus == _present_gpus(problem)[:, None]
    return np.asarray(is_better & ((reduced <= limit[:, None]) | is_present))


def _possible_pairs(problem: MergeProblem, options: Options) -> int:
    """How many pairs there are of a merge and a job that may be its receiver."""
    fresh = np.zeros(len(problem.kinds), np.int64)
    for unit in problem.units:
        fresh[unit.kind] += unit.part == "any"
    receivers = np.array([transfer.receiver for transfer in problem.transfers], np.int64)
    own = np.array([unit.kind if unit.part == "any" else _NOBODY for unit in problem.units], np.int64)
    of_merges = receivers[options.merges.transfer] if options.merges.donor.size else options.merges.donor
    return int(fresh[of_merges].sum() - np.count_nonzero(own[options.merges.donor] == of_merges))


def _alone(
    problem: MergeProblem, options: Options, prices: Prices, is_offered: NDArray[np.bool_]
) -> NDArray[np.void]:
    units, sizes = np.nonzero(is_offered)
    cost, gpus = options.alone[units, sizes], options.gpus[sizes]
    rows = _offers(
        units,
        np.full(units.size, _NOBODY),
        gpus,
        saving=options.waiting[units] - cost,
        reduced=cost + prices.gpu * gpus - prices.units[units],
    )
    rows["is_spatial"] = np.array([len(unit.job_ids) == 2 for unit in problem.units])[units]
    leads = np.array([unit.follower is not None for unit in problem.units])[units]
    rows["is_present"] = (gpus == _present_gpus(problem)[units]) & ~leads
    return rows


def _sizes_of_rows(options: Options, prices: Prices, pairs: int) -> Ints:
    """(rows, sizes offered) indices of the numbers of GPUs that merges may be offered with: all, or where so
    many pairs would have very many offers, those that are cheapest at the price, the cheapest first."""
    rows, sizes = options.merges.cost.shape
    if pairs * sizes <= _MANY or sizes <= _OF_EACH:
        return np.broadcast_to(np.arange(sizes), (rows, sizes))
    reduced = options.merges.cost + prices.gpu * options.gpus
    cheapest = np.argpartition(reduced, _OF_EACH - 1, axis=1)[:, :_OF_EACH]
    order = np.argsort(np.take_along_axis(reduced, cheapest, axis=1), axis=1)
    return np.take_along_axis(cheapest, order, axis=1)


def _merged(
    problem: MergeProblem,
    options: Options,
    prices: Prices,
    merges: Ints,
    partners: Ints,
    sizes_of_rows: Ints,
) -> NDArray[np.void]:
    """Rows of the merges, each with a receiver, with the sizes offered; what is so now is among them."""
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


def _with_present(options: Options, offered: Ints, present_gpus: Ints) -> Ints:
    """(pairs, sizes offered) with the present number of GPUs in place of the dearest, where it is missing.

    Args:
        present_gpus: (pairs,) 0 where there is none.
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
    """(units,) the receiver that each leads now, or nobody."""
    numbers = {unit.job_ids[0]: number for number, unit in enumerate(problem.units)}
    return np.array([numbers.get(unit.follower or "", _NOBODY) for unit in problem.units], np.int64)


def _pairs(
    problem: MergeProblem, options: Options, prices: Prices, count: int, is_every: bool
) -> tuple[Ints, Ints]:
    """(pairs,) merges, and receivers for them: every one, or those that are now, and those of the smallest
    reduced costs with the best number of GPUs. As many as offers are wanted are enough: each has one offer at
    least."""
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
        # At best, with the job of the receiving kind that costs most otherwise.
        at_best = least[chosen] - _dearest(prices, fresh, starts)[receivers[chosen]]
        chosen = chosen[_ranks(merges.donor[chosen], at_best) < _OF_EACH]
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
    """(pairs,) merges, each with every job that may be its receiver."""
    counts = starts[receivers + 1] - starts[receivers]
    merges = np.repeat(np.arange(donors.size), counts)
    places = np.arange(merges.size) - np.repeat(np.cumsum(counts) - counts, counts)
    partners = fresh[starts[receivers[merges]] + places]
    is_other = partners != donors[merges]
    return merges[is_other], partners[is_other]


def _present(problem: MergeProblem, options: Options, receivers: Ints) -> tuple[Ints, Ints]:
    """(pairs,) merges that a donor is in now, and their receivers."""
    followers = _followers(problem)[options.merges.donor]
    kinds = np.array([unit.kind for unit in problem.units], np.int64)
    may_receive = np.array([unit.part == "any" for unit in problem.units])
    is_now = (followers != _NOBODY) & (followers != options.merges.donor)
    is_now &= (kinds[followers] == receivers) & may_receive[followers]
    now = np.flatnonzero(is_now)
    return now, followers[now]


def _few_of_each(first: Ints, second: Ints, reduced: Floats) -> NDArray[np.bool_]:
    """(offers,) whether it is among the cheapest of its first unit, and of its second one if it has one."""
    is_few = _ranks(first, reduced) < _OF_EACH
    merged = np.flatnonzero(second != _NOBODY)
    is_few[merged] &= _ranks(second[merged], reduced[merged]) < _OF_EACH
    return is_few


def _ranks(groups: Ints, values: Floats) -> Ints:
    """How many of its group come before each, the smallest value first."""
    if not groups.size:
        return groups
    order = np.lexsort((values, groups))
    ordered = groups[order]
    is_first = np.r_[True, ordered[1:] != ordered[:-1]]
    places = np.arange(order.size)
    ranks = np.empty_like(order)
    ranks[order] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return ranks


def _dearest(prices: Prices, fresh: Ints, starts: Ints) -> Floats:
    """(kinds,) what the first receiver of each kind costs otherwise; nothing where there is none."""
    dearest = np.zeros(starts.size - 1)
    there = starts[:-1] < starts[1:]
    dearest[there] = prices.units[fresh[starts[:-1][there]]]
    return dearest


def _fresh_by_kind(problem: MergeProblem, prices: Prices) -> tuple[Ints, Ints]:
    """Units that may be receivers, kind after kind, first who costs most otherwise; and (kinds + 1,) where
    those of each kind begin."""
    fresh = np.array([index for index, unit in enumerate(problem.units) if unit.part == "any"], np.int64)
    kinds = np.array([problem.units[index].kind for index in fresh.tolist()], np.int64)
    order = np.lexsort((-prices.units[fresh], kinds))
    starts = np.searchsorted(kinds[order], np.arange(len(problem.kinds) + 1))
    return fresh[order], starts
