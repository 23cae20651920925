"""The task merger (Ymir, section 5.1): who gets how many GPUs, and who is merged with whom.

There are far more options than can be in any good plan. A price per GPU tells which: at the price at which
units would ask for as many GPUs as there are, an option is worth so much less than the best one of its units
(its reduced cost), and only those of the smallest reduced costs become columns of the program. The same
prices prove, for all options, below which objective no plan can be (Lagrangian relaxation of Eq. 11).
"""

import math
import time
from collections.abc import Iterator

import numpy as np

from schemas.merging.commands import TransferMode
from schemas.merging.problems import MergeProblem, MergeSolution, Share
from solvers.merging.offers import Prices, offers_of
from solvers.merging.options import Floats, Options, options_of
from solvers.merging.program import Column, choose

MOST_COLUMNS = 1_600
"""Of the program: building and solving it takes a tenth of a second with so many."""
_PRICE_OF_MERGES = 2.0
"""Where units can be merged, each GPU serves more of them, and is dearer by about so much."""
_PART_FOR_HIGHS = 0.8
"""Of the time that is left: HiGHS looks at its clock now and then."""
RELATIVE_GAP = 1e-3
_PRICE_STEPS = 50


def merge(problem: MergeProblem, time_limit_s: float) -> MergeSolution | None:
    """The best plan that is found in time, and the bound that is proven; None where there is none in time.

    Args:
        time_limit_s: for everything. HiGHS may overrun it by a part of its last step.
    """
    until_s = time.perf_counter() + time_limit_s
    options = options_of(problem)
    prices = _prices(options, problem.gpus)
    offers = offers_of(problem, options, _dearer(options, prices), MOST_COLUMNS).cheapest(MOST_COLUMNS)
    columns = offers.columns()
    left_s = max(until_s - time.perf_counter(), 0.0)
    chosen = choose(columns, problem.gpus, _PART_FOR_HIGHS * left_s, RELATIVE_GAP)
    if chosen is None:
        return None
    all_wait = math.fsum(options.waiting.tolist())
    saved = math.fsum(columns[index].saving for index in chosen.columns)
    return MergeSolution(
        shares=tuple(_share(problem, columns[index], offers.mode(index)) for index in chosen.columns),
        objective=all_wait - saved,
        bound=min(_bound(options, prices, problem), all_wait - saved),
        columns=len(columns),
    )


def smallest() -> MergeProblem:
    """Two jobs that may be merged, on two GPUs."""
    return MergeProblem.model_validate_json(
        """
        {"gpus": 2, "interval_s": 120, "switch_s": 3,
         "kinds": [{"steps": [{"gpus": 1, "step_s": 1.0}, {"gpus": 2, "step_s": 0.6}],
                    "samples_per_step": 8, "dataset_samples": 800}],
         "units": [{"job_ids": ["a"], "kind": 0, "iterations": 100, "waited_s": 0, "part": "any", "gpus": 0},
                   {"job_ids": ["b"], "kind": 0, "iterations": 100, "waited_s": 0, "part": "any", "gpus": 0}],
         "transfers": [{"mode": "temporal", "donor": 0, "receiver": 0, "receiver_ratio": 0.2}]}
        """
    )


def _prices(options: Options, gpus: int) -> Prices:
    """The price at which units, each for itself, ask for no more GPUs than there are."""
    low, high = 0.0, max(float(options.waiting.max(initial=0.0)), 1.0)
    for _ in range(_PRICE_STEPS):
        price = (low + high) / 2
        _, asked = _best_alone(options, price)
        low, high = (price, high) if asked > gpus else (low, price)
    units, _ = _best_alone(options, high)
    return Prices(high, units)


def _dearer(options: Options, prices: Prices) -> Prices:
    """The prices by which columns are chosen."""
    if not options.merges.donor.size:
        return prices
    price = _PRICE_OF_MERGES * prices.gpu
    return Prices(price, _best_alone(options, price)[0])


def _best_alone(options: Options, price: float) -> tuple[Floats, int]:
    """(units,) the least cost of each, and how many GPUs they ask for together."""
    if not options.gpus.size:
        return options.waiting, 0
    costs = options.alone + price * options.gpus
    best = np.argmin(costs, axis=1)
    least = costs[np.arange(len(best)), best]
    runs = least < options.waiting
    return np.where(runs, least, options.waiting), int(options.gpus[best[runs]].sum())


def _bound(options: Options, prices: Prices, problem: MergeProblem) -> float:
    """A lower bound on the objective of every plan.

    At a price per GPU, each unit has a value such that no unit alone, and no two merged, cost less than their
    values: then the values of all units together, less the price of all GPUs, are a bound. Units begin with
    what they cost alone. Where two merged cost less than that, both give up half of the difference.
    """
    merges = options.merges
    values = prices.units.copy()
    if merges.donor.size:
        least = (merges.cost + prices.gpu * options.gpus).min(axis=1)[merges.row]
        receivers = np.array([transfer.receiver for transfer in problem.transfers], np.int64)[merges.transfer]
        highest = np.full(len(problem.kinds), -np.inf)
        fresh = np.array([unit.part == "any" for unit in problem.units])
        kinds = np.array([unit.kind for unit in problem.units], np.int64)
        np.maximum.at(highest, kinds[fresh], prices.units[fresh])
        of_donors = np.zeros(len(values))
        np.maximum.at(of_donors, merges.donor, prices.units[merges.donor] + highest[receivers] - least)
        of_receivers = np.full(len(problem.kinds), -np.inf)
        np.maximum.at(of_receivers, receivers, prices.units[merges.donor] - least)
        as_receiver = np.where(fresh, prices.units + of_receivers[kinds], 0.0)
        values -= np.maximum(np.maximum(of_donors, as_receiver), 0.0) / 2
    return math.fsum(values.tolist()) - prices.gpu * problem.gpus


def _share(problem: MergeProblem, column: Column, mode: TransferMode) -> Share:
    job_ids: Iterator[str] = (id for unit in column.units for id in problem.units[unit].job_ids)
    return Share(job_ids=tuple(job_ids), mode=mode, gpus=column.gpus)
