"""The time of Titan's program as the paper solves it: every batch, to the end or to its limit.

A day under the contender `titan` ends a solve as soon as its plans are proven good enough, which needs no
program when there is plenty of room. So some of that day's batches are solved again, by the program alone.
"""

from bench.auction.runs.contenders import CONTENDERS, TITAN_TIME_LIMIT_S
from bench.auction.runs.day import simulate_day
from bench.workloads.paper import PaperSetting
from schemas.auction.batches import BatchProblem
from schemas.solves import SolveRequested
from solvers.auction.baselines.titan import MAX_VARIABLES, instance_of, pruned
from solvers.auction.offline.schedule_free import solve_schedule_free

EVERY = 12
"""Of so many batches one is solved again, beginning with the first."""
RELATIVE_GAP = 1e-4
"""HiGHS's default."""


def measure_titan_program(setting: PaperSetting, seed: int) -> dict[str, float]:
    """A day under `titan`, and seconds per bid of the program on the batches that are solved again.

    Raises:
        CommandError: the day's plans violate problem P.
    """
    day = simulate_day(setting, seed, lambda declared: CONTENDERS["titan"](declared, setting, seed))
    outcomes = (decision.outcome for decision in day.run.decisions)
    problems = [outcome.problem for outcome in outcomes if isinstance(outcome, SolveRequested)]
    batches = [problem for problem in problems if isinstance(problem, BatchProblem)][::EVERY]
    solutions = [
        solve_schedule_free(pruned(instance_of(batch), MAX_VARIABLES), TITAN_TIME_LIMIT_S, RELATIVE_GAP)
        for batch in batches
    ]
    bids = sum(len(batch.bids) for batch in batches)
    return {
        **day.values(),
        "program_solves": len(solutions),
        "program_proven": sum(solution.status == "optimal" for solution in solutions),
        "program_bids": bids,
        "program_s_per_bid": sum(solution.seconds for solution in solutions) / max(bids, 1),
    }
