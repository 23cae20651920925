"""Which options may become columns of the task merger's program, in the order of their reduced costs."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.merging.commands import TransferMode
from schemas.merging.problems import MergeProblem
from solvers.merging.options import Floats, Ints, Options
from solvers.merging.program import Column

_NOBODY = -1
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

    def cheapest(self, count: int) -> "Offers":
        """What is so now, and of the others those of the smallest reduced costs; in the order in which they
        are."""
        order = np.argsort(np.where(self.rows["is_present"], -np.inf, self.rows["reduced"]), kind="stable")
        return Offers(self.rows[np.sort(order[:count])])

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


def offers_of(problem: MergeProblem, options: Options, prices: Prices) -> Offers:
    """Everything that is better than waiting."""
    merges, partners = _pairs(problem, options, prices)
    alone, merged = _alone(problem, options, prices), _merged(problem, options, prices, merges, partners)
    return Offers(np.concatenate([alone, merged]))


def _alone(problem: MergeProblem, options: Options, prices: Prices) -> NDArray[np.void]:
    units, sizes = np.nonzero(options.alone < options.waiting[:, None])
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


def _merged(
    problem: MergeProblem, options: Options, prices: Prices, merges: Ints, partners: Ints
) -> NDArray[np.void]:
    """Rows of the merges, each with a receiver."""
    donors = options.merges.donor[merges]
    modes = np.array([transfer.mode == "spatial" for transfer in problem.transfers], np.bool_)
    is_spatial = modes[options.merges.transfer[merges]]
    numbers = {unit.job_ids[0]: number for number, unit in enumerate(problem.units)}
    followers = np.array([numbers.get(unit.follower or "", _NOBODY) for unit in problem.units], np.int64)
    follows = (followers[donors] == partners) & ~is_spatial
    is_present = follows[:, None] & (options.gpus == _present_gpus(problem)[donors][:, None])
    switch = np.where(is_present, 0.0, options.merges.switch[merges][:, None])
    cost = options.merges.cost[merges] + switch
    waiting = options.waiting[donors] + options.waiting[partners]
    values = prices.units[donors] + prices.units[partners]
    pairs, sizes = np.nonzero(cost < waiting[:, None])
    cost, gpus = cost[pairs, sizes], options.gpus[sizes]
    rows = _offers(
        donors[pairs],
        partners[pairs],
        gpus,
        saving=waiting[pairs] - cost,
        reduced=cost + prices.gpu * gpus - values[pairs],
    )
    rows["is_spatial"], rows["is_present"] = is_spatial[pairs], is_present[pairs, sizes]
    return rows


def _present_gpus(problem: MergeProblem) -> Ints:
    return np.array([unit.gpus for unit in problem.units], np.int64)


def _pairs(problem: MergeProblem, options: Options, prices: Prices) -> tuple[Ints, Ints]:
    """(pairs,) rows of the merges, and receivers for them."""
    merges = options.merges
    if not merges.donor.size:
        return merges.donor, merges.donor
    least = (merges.cost + prices.gpu * options.gpus).min(axis=1) - prices.units[merges.donor]
    fresh = _fresh_by_kind(problem, prices)
    order = np.lexsort((least, merges.transfer))
    offered: dict[tuple[int, int], None] = {}
    rank, last = 0, _NOBODY
    for row in order.tolist():
        transfer, donor = int(merges.transfer[row]), int(merges.donor[row])
        rank = rank + 1 if transfer == last else 0
        last = transfer
        if rank >= problem.gpus:
            continue
        for partner in _near(problem, fresh[problem.transfers[transfer].receiver], donor, rank):
            offered[row, partner] = None
    rows, partners = np.array(list(offered), np.int64).reshape(-1, 2).T
    return rows, partners


def _near(problem: MergeProblem, fresh: list[int], donor: int, rank: int) -> Iterator[int]:
    """Receivers for the donor of this rank: those near it in rank, and the one that it has."""
    for partner in fresh[max(rank - _NEIGHBOURS, 0) : rank + _NEIGHBOURS + 1]:
        if partner != donor:
            yield partner
    follower = problem.units[donor].follower
    if follower is not None:
        yield from (unit for unit in fresh if problem.units[unit].job_ids[0] == follower)


def _fresh_by_kind(problem: MergeProblem, prices: Prices) -> dict[int, list[int]]:
    """Units that may be receivers, by kind: first who costs most otherwise."""
    by_kind: dict[int, list[int]] = {}
    for index in np.argsort(-prices.units, kind="stable").tolist():
        if problem.units[index].part == "any":
            by_kind.setdefault(problem.units[index].kind, []).append(index)
    return by_kind
