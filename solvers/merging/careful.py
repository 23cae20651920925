"""Plans whose new merges delay no job, by forecast.

A problem that limits delays (`MergeProblem.most_later`) is solved twice: without new merges, and with them.
The second plan is kept only if, by the lower confidence bounds of the savings of its merges,

- the mean completion time of all jobs is expected to be shorter,
- the longest completion time is expected to be no longer, even if every new merge is undone.

Otherwise the first plan is kept. It is the plan of a zone without merging. So a zone without evidence from
past merges makes the same plans as one that does not merge.
"""

import time

from schemas.merging.problems import MergeProblem, MergeSolution
from solvers.merging.forecast import forecast, new_merges
from solvers.merging.merger import merge

_PART_FOR_FIRST = 0.5
"""Part of the time limit for the plan without new merges."""


def plan(problem: MergeProblem, time_limit_s: float) -> MergeSolution:
    """Return the best plan found in time; its new merges delay no job on the whole.

    Args:
        time_limit_s: total limit, see `merger.merge`.
    """
    if problem.most_later is None or not problem.transfers:
        return merge(problem, time_limit_s)
    start_s = time.perf_counter()
    unmerged = _without_new_merges(problem)
    without = merge(unmerged, _PART_FOR_FIRST * time_limit_s)
    if not any(unit.part == "any" for unit in problem.units):
        return without  # every merge has a job without progress
    merged = merge(problem, start_s + time_limit_s - time.perf_counter())
    is_better = bool(new_merges(problem, merged.shares)) and _pays(problem, merged, without)
    return merged if is_better else without


def _without_new_merges(problem: MergeProblem) -> MergeProblem:
    """Return the problem with only the merges that are under way."""
    followers = {unit.follower for unit in problem.units if unit.follower is not None}
    if not followers:
        return problem.model_copy(update={"transfers": ()})
    units = tuple(
        unit
        if unit.follower is not None or unit.job_ids[0] in followers
        else unit.model_copy(update={"part": "none"})
        for unit in problem.units
    )
    return problem.model_copy(update={"units": units})


def _pays(problem: MergeProblem, merged: MergeSolution, without: MergeSolution) -> bool:
    """Return whether merges shorten the mean completion time, and never lengthen the longest one."""
    before, after = forecast(problem, without.shares), forecast(problem, merged.shares)
    if after.mean_s >= before.mean_s or after.longest_s > before.longest_s:
        return False
    return forecast(problem, merged.shares, is_undone=True).longest_s <= before.longest_s
