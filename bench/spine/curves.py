"""Time of plans for thousands of jobs with steps from the profile store, divided by the time for the same
number of jobs with declared steps or steps measured alone."""

import random
from collections.abc import Callable
from statistics import median

from bench.figures import Measurement, Result, Table
from bench.spine.situations import Situation
from bench.spine.situations.elastic import round_of
from bench.spine.situations.merging import question_of
from streams.worker.garbage import tune_gc

_JOBS, _QUICK_JOBS = 3_000, 500
_TIMES = 9
"""Number of times that each plan is timed, in turns with the other: the machine's load is that of both."""

Plans = Callable[[random.Random, int, bool], Situation]


def measure_curves(quick: bool, seed: int) -> Result:
    """Measure `elastic_plan_with_curves_ratio` and `merging_plan_with_curves_ratio`: medians of processor
    times of one round, or of one question to the solver."""
    tune_gc()
    jobs = _QUICK_JOBS if quick else _JOBS
    measured, rows = [], []
    for policy, plans in (("elastic", round_of), ("merging", question_of)):
        without, with_curves = (plans(random.Random(seed), jobs, has_curves) for has_curves in (False, True))
        pairs = [(without.time_s(), with_curves.time_s()) for _ in range(_TIMES)]
        without_s, with_s = (median(times) for times in zip(*pairs, strict=True))
        ratio = median(one_with / one_without for one_without, one_with in pairs)
        note = (
            f"{jobs} jobs, median of {_TIMES} pairs of plans: {1e3 * with_s:.1f} ms with published curves, "
            f"{1e3 * without_s:.1f} ms without"
        )
        measured.append(Measurement(f"{policy}_plan_with_curves_ratio", ratio, note, _TIMES))
        rows.append({"policy": policy, "jobs": jobs, "with_s": with_s, "without_s": without_s})
    return Result(tuple(measured), (Table("curves", rows),))
