"""Plans whose new merges delay nobody, as far as can be foreseen.

Where a problem limits delays (`MergeProblem.most_later`), it is solved twice: without new merges, and with
them. The second plan is kept only where by the lower confidence bounds of what its merges save

- the mean completion time of all jobs is expected to be shorter,
- the longest completion time is expected to be no longer, and neither is it if every new merge is undone.

Else the first plan is kept. It is the one that a zone without merging has, so a zone whose past merges show
nothing makes the same plans as one that does not merge.
"""

import time

from schemas.merging.problems import MergeProblem, MergeSolution
from solvers.merging.forecast import forecast, new_merges
from solvers.merging.merger import merge

_PART_FOR_FIRST = 0.5
"""Part of the time limit for the plan without new merges."""


def plan(problem: MergeProblem, time_limit_s: float) -> MergeSolution:
    """The best plan that is found in time; its new merges delay no job on the whole.

    Args:
        time_limit_s: for everything, see `merger.merge`.
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
    """The same problem with the merges that are under way alone."""
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
    """Whether merges shorten the mean completion time, and lengthen the longest one in no case."""
    before, after = forecast(problem, without.shares), forecast(problem, merged.shares)
    if after.mean_s >= before.mean_s or after.longest_s > before.longest_s:
        return False
    return forecast(problem, merged.shares, is_undone=True).longest_s <= before.longest_s
