"""Answers of the solver that Titan's zones ask."""

from schemas.solves import SolveFinished, SolveRequested
from solvers.auction.baselines.titan import solve_batch


def titan_answer(requested: SolveRequested, cell: str = "c") -> SolveFinished:
    """Return the solver's answer to a request."""
    return SolveFinished(
        cell=cell,
        zone=requested.zone,
        request_id=requested.request_id,
        solution=solve_batch(requested.problem, requested.time_limit_s),
        solve_s=0.1,
    )
