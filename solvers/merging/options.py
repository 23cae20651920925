"""Options of the task merger: GPUs for each unit, and merges of two, with their costs (Eq. 7).

Eq. 7 as printed adds up T_fair / T_a, which is smallest for the slowest allocation (erratum Y1). The
objective here is the sum of slowdowns T_a / T_fair. A waiting unit has a slowdown too: as if it waited one
more interval and then ran on the fewest GPUs that it may have. So its slowdown is always above that of
running, and the units with the least work come first.

If the total waiting time of a unit exceeds its remaining duration on the fewest GPUs, the excess is added. So
its slowdown grows until it runs, and no unit starves. The part below that does not count. Otherwise, of two
units with equal durations, the waiting unit would soon appear better than the running unit. They would
alternate interval by interval, at the cost of two switches each time, and neither would gain. For the same
reason waiting time also counts while the unit runs, and is not reset when it starts. A running unit that is
stopped pays for its next start, and a waiting one for its first, so that a plan with hardly any gain is not
worth it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.merging.problems import MergeProblem, StepTime
from solvers.compiled import Floats, Ints

_MOST_CELLS = 6_000_000
"""Most merges of different cost, times numbers of GPUs: half a second for so many."""
_CELLS_AT_ONCE = 500_000
"""Cells computed together: a dozen arrays of that size are in memory at a time."""
_MOST_MERGES = 1_000_000
_LARGEST_SLOWDOWN = 1e6
"""Slowdown above which a longer wait makes no difference: HiGHS's tolerances are relative to such numbers."""
_LEAST_FAIR_S = 0.01
"""Least assumed duration. Otherwise the cost of a start would be a slowdown above the largest, and a job with
almost no work left would wait for ever."""


@dataclass(frozen=True)
class PlanOptions:
    """All options of a problem. Rows of the arrays are units, or merges; columns are numbers of GPUs.

    An option that does not exist costs infinity.
    """

    gpus: Ints
    """Numbers of GPUs that some unit may have, ascending, (sizes,)."""
    waiting: Floats
    """Cost of waiting of each unit, (units,)."""
    alone: Floats
    """Cost of each unit with each number of GPUs (normal transfer), (units, sizes)."""
    merges: "MergeOptions"


@dataclass(frozen=True)
class MergeOptions:
    """Merges of a unit with any job of a kind. Jobs of a kind without progress differ only in their
    waiting time, so the cost of a merge does not depend on the job."""

    donor: Ints
    """Index of the donor unit, (merges,)."""
    transfer: Ints
    """Index of the transfer, whose `receiver` is the kind of the other job, (merges,)."""
    row: Ints
    """Row in `cost` and `switch`, (merges,). Donors of a kind with equal remaining iterations share a row."""
    cost: Floats
    """Cost without that of a switch, (rows, sizes)."""
    switch: Floats
    """Additional cost of a merge that is new or changes its GPUs, (rows,)."""
    left_out: bool
    """Whether there are too many merges to examine, and these are only the most promising ones."""


def options_of(problem: MergeProblem) -> PlanOptions:
    """Return every option that can be worth choosing."""
    gpus = np.array(
        sorted({step.gpus for steps in problem.step_tables for step in steps if step.gpus <= problem.gpus}),
        np.int64,
    )
    rows = np.array([_step_row(steps, gpus) for steps in problem.step_tables]).reshape(
        len(problem.step_tables), -1
    )
    steps_s = rows[[kind.step_table for kind in problem.kinds]]
    jobs = sum(len(unit.job_ids) for unit in problem.units)
    share = -(-problem.gpus // jobs)
    kinds = np.array([unit.kind for unit in problem.units], np.int64)
    iterations = np.array([unit.iterations for unit in problem.units])
    weights = np.array([len(unit.job_ids) for unit in problem.units])
    times_s = steps_s[kinds] * iterations[:, None]
    fair_s = np.where(weights == 1, _at_share(times_s, gpus, share), _at_share(times_s, gpus, 2 * share))
    waiting, alone = _alone(problem, gpus, times_s, fair_s, weights)
    return PlanOptions(gpus, waiting, alone, _merges(problem, gpus, steps_s, times_s, share))


def _step_row(steps: Sequence[StepTime], gpus: Ints) -> Floats:
    """Return the seconds per step, (sizes,); infinite for numbers of GPUs that such a job may not have."""
    row = np.full(gpus.size, np.inf)
    known = [step for step in steps if step.gpus <= gpus[-1]] if gpus.size else []
    row[np.searchsorted(gpus, [step.gpus for step in known])] = [step.step_s for step in known]
    return row


def _at_share(times_s: Floats, gpus: Ints, share: int) -> Floats:
    """Return the duration of each row with a fair share of the GPUs, (rows,): at the largest valid number
    that is no more, else the smallest."""
    if not gpus.size:
        return np.full(len(times_s), np.inf)
    within = np.isfinite(times_s) & (gpus <= share)
    last = gpus.size - 1 - np.argmax(within[:, ::-1], axis=1)
    first = np.argmax(np.isfinite(times_s), axis=1)
    chosen = np.where(within.any(axis=1), last, first)
    return np.asarray(np.maximum(times_s[np.arange(len(times_s)), chosen], _LEAST_FAIR_S))


def _alone(
    problem: MergeProblem, gpus: Ints, times_s: Floats, fair_s: Floats, weights: Ints
) -> tuple[Floats, Floats]:
    """Return the cost of units that wait, and of those that run."""
    now = np.array([unit.gpus for unit in problem.units], np.int64)
    waited_s = np.array([unit.waited_s for unit in problem.units])
    leads = np.array([unit.follower is not None for unit in problem.units])
    with np.errstate(invalid="ignore"):
        switch = weights * problem.switch_s / fair_s
        running = weights[:, None] * times_s / fair_s[:, None]
        is_change = (gpus[None, :] != now[:, None]) | leads[:, None]
        running += np.where(is_change, switch[:, None], 0.0)
        slowest_s = np.where(np.isfinite(times_s), times_s, -np.inf).max(axis=1, initial=-np.inf)
        counted_s = np.maximum(waited_s - slowest_s, 0.0) + problem.interval_s
        waiting = weights * (slowest_s + counted_s) / fair_s
        waiting += np.where(now > 0, switch, 0.0)
    # A unit without any valid number of GPUs waits; its cost does not depend on the plan.
    waiting = np.where(np.isfinite(fair_s), np.minimum(waiting, _LARGEST_SLOWDOWN), 0.0)
    return waiting, np.where(np.isfinite(running), running, np.inf)


def _merges(problem: MergeProblem, gpus: Ints, steps_s: Floats, times_s: Floats, share: int) -> MergeOptions:
    """Return the merges that are faster than sequential training (TranWt of at least 1, Eqs. 12 and 13)."""
    donors, transfers, left_out = _candidates(problem, gpus.size)
    if not donors.size:
        return MergeOptions(donors, transfers, donors, np.empty((0, gpus.size)), np.empty(0), left_out)
    first, row = _alike(problem, donors, transfers)
    is_present = np.zeros(first.size, np.bool_)
    is_present[row[_is_present(problem, donors, transfers)]] = True
    at_once = max(_CELLS_AT_ONCE // max(gpus.size, 1), 1)
    blocks = [slice(begin, begin + at_once) for begin in range(0, first.size, at_once)]
    costs, switches = zip(
        *(
            _merge_costs(
                problem,
                gpus,
                steps_s,
                times_s,
                share,
                donors[first[block]],
                transfers[first[block]],
                is_present[block],
            )
            for block in blocks
        ),
        strict=True,
    )
    cost, switch = np.concatenate(costs), np.concatenate(switches)
    worth = np.asarray(np.isfinite(cost).any(axis=1))
    kept = worth[row]
    numbers = np.cumsum(worth) - 1
    return MergeOptions(
        donors[kept], transfers[kept], numbers[row[kept]], cost[worth], switch[worth], left_out
    )


def _is_present(problem: MergeProblem, donors: Ints, transfers: Ints) -> NDArray[np.bool_]:
    """Return whether the donor is in such a merge now, with a job that waits for it, (merges,)."""
    kinds = {unit.job_ids[0]: unit.kind for unit in problem.units}
    followers = np.array([kinds.get(unit.follower or "", -1) for unit in problem.units], np.int64)
    receivers = np.array([transfer.receiver for transfer in problem.transfers], np.int64)
    return np.asarray(followers[donors] == receivers[transfers])


def _alike(problem: MergeProblem, donors: Ints, transfers: Ints) -> tuple[Ints, Ints]:
    """Return one merge of each kind of donor, (rows,), and the row of each merge, (merges,)."""
    iterations = np.array([unit.iterations for unit in problem.units])
    _, amount = np.unique(iterations, return_inverse=True)
    # A transfer names the donor's kind.
    keys = transfers * (int(amount.max()) + 1) + amount[donors]
    _, first, row = np.unique(keys, return_index=True, return_inverse=True)
    return first, row


def _merge_costs(
    problem: MergeProblem,
    gpus: Ints,
    steps_s: Floats,
    times_s: Floats,
    share: int,
    donors: Ints,
    transfers: Ints,
    is_present: NDArray[np.bool_],
) -> tuple[Floats, Floats]:
    """Return the costs of merges, infinite where they are no faster, (rows, sizes), and of their switches,
    (rows,)."""
    receiver = np.array([transfer.receiver for transfer in problem.transfers], np.int64)[transfers]
    is_spatial = np.array([transfer.mode == "spatial" for transfer in problem.transfers])[transfers]
    ratio = np.array([transfer.receiver_ratio for transfer in problem.transfers])[transfers]
    donor_ratio = np.array([transfer.donor_ratio for transfer in problem.transfers])[transfers]
    fresh_iterations = _fresh_iterations(problem)[receiver]
    donor_s = times_s[donors]
    receiver_s = steps_s[receiver] * fresh_iterations[:, None]
    merged_s = donor_s + receiver_s * ratio[:, None]
    joint = np.flatnonzero(is_spatial)
    if joint.size:
        merged_s[joint] = _joint_s(
            problem, steps_s, donors[joint], receiver[joint], donor_ratio[joint], ratio[joint]
        )
    is_late = _is_late(
        problem, gpus, share, (donors, receiver, is_spatial), (donor_s, receiver_s, merged_s), steps_s
    )
    shorter_s, longer_s = np.minimum(donor_s, receiver_s), np.maximum(donor_s, receiver_s)
    both_end_s = np.where(is_spatial[:, None], 2 * merged_s, donor_s + merged_s)
    with np.errstate(invalid="ignore"):
        weight = (2 * shorter_s + longer_s) / both_end_s
        fair_s = _at_share(merged_s, gpus, 2 * share)[:, None]
        cost = np.where(np.isfinite(merged_s) & (weight >= 1), 2 * merged_s / fair_s / weight, np.inf)
        cost[is_late & ~is_present[:, None]] = np.inf
        switch = 2 * problem.switch_s / fair_s[:, 0]
    return cost, switch


def _is_late(
    problem: MergeProblem,
    gpus: Ints,
    share: int,
    merges: tuple[Ints, Ints, NDArray[np.bool_]],
    times_s: tuple[Floats, Floats, Floats],
    steps_s: Floats,
) -> NDArray[np.bool_]:
    """Return whether a job that learns in the merge would end later than alone with its fair share of the
    GPUs, or too much later if the merge is undone, (rows, sizes)."""
    donors, receiver, is_spatial = merges
    donor_s, receiver_s, merged_s = times_s
    most_later = problem.most_later
    if most_later is None:
        return np.zeros(merged_s.shape, np.bool_)
    kinds = np.array([unit.kind for unit in problem.units], np.int64)[donors]
    epochs_s = np.array([-(-kind.dataset_samples // kind.samples_per_step) for kind in problem.kinds]) * 1.0
    watched = problem.watched_epochs
    lost_s = watched * epochs_s[receiver][:, None] * steps_s[receiver]
    donor_lost_s = watched * epochs_s[kinds][:, None] * steps_s[kinds]
    both_lost_s = np.where(is_spatial[:, None], lost_s + donor_lost_s, donor_s + lost_s)
    fair_s = _at_share(receiver_s, gpus, share)[:, None]
    last = _last_kind(problem, gpus, share, steps_s)
    bound = 1.0 + np.where(receiver == last, 0.0, most_later)[:, None]
    donor_bound = 1.0 + np.where(kinds == last, 0.0, most_later)[:, None]
    late = (merged_s > fair_s) | (both_lost_s + receiver_s > bound * fair_s)
    donor_fair_s = _at_share(donor_s, gpus, share)[:, None]
    donor_late = (merged_s > donor_fair_s) | (both_lost_s + donor_s > donor_bound * donor_fair_s)
    return np.asarray(late | (donor_late & is_spatial[:, None]))


def _last_kind(problem: MergeProblem, gpus: Ints, share: int, steps_s: Floats) -> int:
    """Return the kind of the unit that would end last, each alone with its fair share."""
    kinds = np.array([unit.kind for unit in problem.units], np.int64)
    iterations = np.array([unit.iterations for unit in problem.units])
    waited_s = np.array([unit.waited_s for unit in problem.units])
    ends_s = waited_s + _at_share(steps_s[kinds] * iterations[:, None], gpus, share)
    return int(kinds[np.argmax(np.where(np.isfinite(ends_s), ends_s, 0.0))])


def _candidates(problem: MergeProblem, sizes: int) -> tuple[Ints, Ints, bool]:
    """Return each possible donor with each transfer from its kind to an existing job, (merges,), and whether
    some were left out because there are too many."""
    fresh = np.zeros(len(problem.kinds), np.int64)
    donors: dict[int, list[int]] = {}
    for number, unit in enumerate(problem.units):
        fresh[unit.kind] += unit.part == "any"
        if unit.part != "none":
            donors.setdefault(unit.kind, []).append(number)
    useful: dict[int, list[int]] = {}
    for index, transfer in enumerate(problem.transfers):
        if fresh[transfer.receiver] and transfer.donor in donors:
            useful.setdefault(transfer.donor, []).append(index)
    lengths = {
        kind: len({problem.units[unit].iterations for unit in units}) for kind, units in donors.items()
    }
    merges = sum(len(donors[kind]) * len(indices) for kind, indices in useful.items())
    cells = sizes * sum(lengths[kind] * len(indices) for kind, indices in useful.items())
    part = min(_MOST_CELLS / max(cells, 1), _MOST_MERGES / max(merges, 1))
    left_out = part < 1.0
    if left_out:
        useful = {
            kind: _most_promising(problem, indices, math.ceil(part * len(indices)))
            for kind, indices in useful.items()
        }
    parts = [
        (np.repeat(donors[kind], len(indices)), np.tile(indices, len(donors[kind])))
        for kind, indices in useful.items()
    ]
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64), False
    first, chosen = (np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True))
    is_fresh = np.array([unit.part == "any" for unit in problem.units])[first]
    kinds = np.array([unit.kind for unit in problem.units], np.int64)[first]
    receivers = np.array([transfer.receiver for transfer in problem.transfers], np.int64)[chosen]
    is_temporal = np.array([transfer.mode == "temporal" for transfer in problem.transfers])[chosen]
    is_alone = is_fresh & (receivers == kinds) & (fresh[kinds] == 1)
    possible = ~is_alone & (is_temporal | is_fresh)
    order = np.lexsort((chosen[possible], first[possible]))
    return first[possible][order], chosen[possible][order], left_out


def _most_promising(problem: MergeProblem, indices: Sequence[int], count: int) -> list[int]:
    """Return the transfers of a donor whose receivers need the smallest part of their iterations."""

    def needed(index: int) -> float:
        one = problem.transfers[index]
        return one.receiver_ratio if one.mode == "temporal" else (one.receiver_ratio + one.donor_ratio) / 2

    return sorted(sorted(indices, key=needed)[:count])


def _fresh_iterations(problem: MergeProblem) -> Floats:
    """Return the iterations of jobs without progress, (kinds,): the maximum of a kind, since its jobs differ
    only in the bound that their users set."""
    iterations = np.zeros(len(problem.kinds))
    for unit in problem.units:
        if unit.part == "any":
            iterations[unit.kind] = max(iterations[unit.kind], unit.iterations)
    return iterations


def _joint_s(
    problem: MergeProblem,
    steps_s: Floats,
    donors: Ints,
    receiver: Ints,
    donor_ratio: Floats,
    receiver_ratio: Floats,
) -> Floats:
    """Return the duration of a spatial merge, (merges, sizes): Eq. 4 (erratum Y3), with joint steps that take
    as long as one step of each job."""
    kinds = np.array([unit.kind for unit in problem.units], np.int64)[donors]
    batch = np.array([kind.samples_per_step for kind in problem.kinds], np.float64)
    samples = np.array([kind.dataset_samples for kind in problem.kinds], np.float64)
    iterations = np.array([unit.iterations for unit in problem.units])[donors]
    epochs = np.maximum(
        donor_ratio * iterations * batch[kinds] / samples[kinds],
        receiver_ratio * _fresh_iterations(problem)[receiver] * batch[receiver] / samples[receiver],
    )
    steps = epochs * (samples[kinds] + samples[receiver]) / (batch[kinds] + batch[receiver])
    return np.asarray((steps_s[kinds] + steps_s[receiver]) * steps[:, None])
