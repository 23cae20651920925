"""Solver of the round-robin policy."""

from tests.round_robin.kind import SortProblem, SortSolution


def shortest_first(problem: SortProblem, time_limit_s: float) -> SortSolution:
    """The order in which the mean job ends soonest; ties by id."""
    return SortSolution(
        job_ids=tuple(sorted(problem.left_samples, key=lambda id: (problem.left_samples[id], id)))
    )


def smallest() -> SortProblem:
    """One job."""
    return SortProblem(left_samples={"job": 1})
