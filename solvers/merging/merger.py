"""Task merger (Ymir, section 5.1): GPUs for each job, and merges of jobs.

There are far more options than can be in any good plan. Prices of GPUs and units select them: the reduced
cost of an option is its cost beyond the value of its units at these prices, and only options of the smallest
reduced costs become columns of the program. At the first prices, units would each request GPUs for
themselves, as many as there are. Better prices are the duals of the program with fractional columns. They
give more columns, and so on for a few rounds (`relaxation`).

Rounding that relaxation gives a plan at once (`incumbent`). HiGHS searches for a better one among the columns
that can be in one. If the plan is not proven optimal, its idle GPUs go to its running units (`growth`).
"""

import math
import time
from collections.abc import Iterator, Sequence

import numpy as np

from schemas.merging.commands import TransferMode
from schemas.merging.problems import MergeProblem, MergeSolution, Share
from solvers.merging.offers import Offers, UnitPrices, offers_of
from solvers.merging.options import PlanOptions, options_of
from solvers.merging.pricing import bound_at, first_bound, first_prices, grow_shares
from solvers.merging.program import Column, RelaxedPlan, choose, incumbent, relax

MOST_COLUMNS = 1_600
"""Columns found by a round: with so many, solving the relaxation takes some hundredths of a second."""
_COLUMNS_PER_SHARE = 4
"""Least columns per share: a plan may give each GPU to another unit, and each unit has at most one share."""
_ROUNDS = 3
_PART_FOR_COLUMNS = 0.4
"""Part of the limit after which no further round begins."""
_PART_FOR_RELAXATION = 0.6
_PART_FOR_HIGHS = 0.6
"""Part of the remaining time: HiGHS checks its clock only at times."""
_LEAST_S = 0.05
"""Least time for which a program is built."""
_LEAST_PER_COLUMN_S = 1e-4
"""Least time per column to build and presolve the program. Neither step checks a clock."""
RELATIVE_GAP = 1e-3
"""Relative gap, of the slowdowns of the running units of a plan and of its saving over waiting. A better plan
is not searched if it can improve by no more than the smaller of both. A single unit that has waited long can
make up nearly the whole saving, or nearly the whole cost of waiting, whatever the other units get."""
_ROUNDING = 1e-12


def merge(problem: MergeProblem, time_limit_s: float) -> MergeSolution:
    """Return the best plan found in time, and the proven bound.

    There always is a plan: one is found before HiGHS searches for a better one, so the limit costs only
    quality. Only the steps before HiGHS may exceed a very short limit.

    Args:
        time_limit_s: total limit. HiGHS may exceed it by a part of its last step.
    """
    start_s = time.perf_counter()
    options = options_of(problem)
    offers, relaxed, bound = _columns(problem, options, start_s, time_limit_s)
    columns = offers.columns()
    likely = [] if relaxed is None else np.lexsort((relaxed.lacking, -relaxed.parts)).tolist()
    chosen = incumbent(columns, problem.gpus, likely)
    all_wait = math.fsum(options.waiting.tolist())
    left_s = start_s + time_limit_s - time.perf_counter()
    if left_s >= _LEAST_S and not _is_optimal(options, bound, columns, chosen):
        chosen, most = _improved(options, problem.gpus, columns, chosen, relaxed, _PART_FOR_HIGHS * left_s)
        if offers.is_all:
            bound = max(bound, all_wait - most)
    is_optimal = _is_optimal(options, bound, columns, chosen)
    rows = offers.rows[list(chosen)]
    # An optimal plan stays: a gain by mere rounding is not worth a switch.
    plan = Offers(rows if is_optimal else grow_shares(problem, options, rows), is_all=False)
    shares = plan.columns()
    objective = all_wait - _saved(shares, range(len(shares)))
    return MergeSolution(
        shares=tuple(_share(problem, share, plan.mode(place)) for place, share in enumerate(shares)),
        objective=objective,
        bound=min(bound, objective),
        columns=len(columns),
        search="optimal" if is_optimal else "limited",
    )


def smallest() -> MergeProblem:
    """Return a problem of two jobs that may be merged, on two GPUs."""
    return MergeProblem.model_validate_json(
        """
        {"gpus": 2, "interval_s": 120, "switch_s": 3,
         "step_tables": [[{"gpus": 1, "step_s": 1.0}, {"gpus": 2, "step_s": 0.6}]],
         "kinds": [{"step_table": 0, "samples_per_step": 8, "dataset_samples": 800}],
         "units": [{"job_ids": ["a"], "kind": 0, "iterations": 100, "waited_s": 0, "part": "any", "gpus": 0},
                   {"job_ids": ["b"], "kind": 0, "iterations": 100, "waited_s": 0, "part": "any", "gpus": 0}],
         "transfers": [{"mode": "temporal", "donor": 0, "receiver": 0, "receiver_ratio": 0.2}]}
        """
    )


def _columns(
    problem: MergeProblem, options: PlanOptions, start_s: float, time_limit_s: float
) -> tuple[Offers, RelaxedPlan | None, float]:
    """Return the columns, their relaxation if time permits, and a bound on the objective of all plans."""
    most = max(MOST_COLUMNS, _COLUMNS_PER_SHARE * min(problem.gpus, len(problem.units)))
    prices, dearer = first_prices(options, problem.gpus)
    offers = offers_of(problem, options, dearer, most).cheapest(most)
    bound = first_bound(options, problem, prices)
    last: RelaxedPlan | None = None
    for round_ in range(_ROUNDS):
        left_s = start_s + time_limit_s - time.perf_counter()
        if left_s < _LEAST_S or not len(offers.rows):
            return offers, None, bound
        # Afterwards a plan must still be rounded from it, or found without it.
        relaxed = relax(offers.rows, len(problem.units), problem.gpus, _PART_FOR_RELAXATION * left_s)
        if relaxed is None:
            return offers, None, bound
        prices = UnitPrices(relaxed.gpu, options.waiting - relaxed.units)
        bound = max(bound, bound_at(options, problem, prices))
        is_better = last is None or relaxed.saving - last.saving > _allowed_in_parts(options, offers, relaxed)
        is_time = time.perf_counter() - start_s < _PART_FOR_COLUMNS * time_limit_s
        if offers.is_all or round_ == _ROUNDS - 1 or not is_better or not is_time:
            break
        more = offers_of(problem, options, prices, most).cheapest(most)
        offers, last = offers.only(relaxed.parts > 0).with_more(more), relaxed
    return offers, relaxed, bound


def _improved(
    options: PlanOptions,
    gpus: int,
    columns: Sequence[Column],
    chosen: tuple[int, ...],
    relaxed: RelaxedPlan | None,
    time_limit_s: float,
) -> tuple[tuple[int, ...], float]:
    """Return the best choice that HiGHS finds, and an upper bound on the saving by these columns."""
    saved, allowed = _saved(columns, chosen), _allowed(options, columns, chosen)
    most = math.inf if relaxed is None else relaxed.saving
    if most - saved <= allowed:
        return chosen, most
    # No choice is better with a column that lacks more than the possible improvement.
    kept = [
        index for index in range(len(columns)) if relaxed is None or relaxed.lacking[index] <= most - saved
    ]
    if len(kept) * _LEAST_PER_COLUMN_S > time_limit_s:
        return chosen, most
    start = [place for place, index in enumerate(kept) if index in set(chosen)]
    solved = choose([columns[index] for index in kept], gpus, start, time_limit_s, allowed)
    if solved is None:
        return chosen, most
    found = tuple(kept[place] for place in solved.columns)
    return max(chosen, found, key=lambda some: _saved(columns, some)), min(most, max(solved.bound, saved))


def _saved(columns: Sequence[Column], chosen: Sequence[int]) -> float:
    return math.fsum(columns[index].saving for index in chosen)


def _allowed(options: PlanOptions, columns: Sequence[Column], chosen: Sequence[int]) -> float:
    """Return the largest improvement over this plan that is not searched for."""
    saved = _saved(columns, chosen)
    if_waited = math.fsum(options.waiting[unit] for index in chosen for unit in columns[index].units)
    return RELATIVE_GAP * min(saved, if_waited - saved)


def _allowed_in_parts(options: PlanOptions, offers: Offers, relaxed: RelaxedPlan) -> float:
    """Return the same tolerance as `_allowed` for the relaxed plan."""
    if_waited = float(relaxed.parts @ offers.if_waited(options.waiting))
    return RELATIVE_GAP * min(relaxed.saving, if_waited - relaxed.saving)


def _is_optimal(options: PlanOptions, bound: float, columns: Sequence[Column], chosen: Sequence[int]) -> bool:
    """Return whether no plan saves more than the tolerance. Rounding is relative to the whole objective."""
    all_wait = math.fsum(options.waiting.tolist())
    lacks = all_wait - bound - _saved(columns, chosen)
    return lacks <= _allowed(options, columns, chosen) + _ROUNDING * all_wait


def _share(problem: MergeProblem, column: Column, mode: TransferMode) -> Share:
    job_ids: Iterator[str] = (id for unit in column.units for id in problem.units[unit].job_ids)
    return Share(job_ids=tuple(job_ids), mode=mode, gpus=column.gpus)
