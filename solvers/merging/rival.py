"""Allocations by the schemes to which merging is compared, made in a solver process."""

from collections.abc import Sequence

from schemas.merging.problems import MergeSolution, RivalJob, RivalProblem, Share, StepTime
from solvers.merging.scheme import Contender
from solvers.merging.schemes import RIVALS

_LEAST_S = 1e-9
"""Least duration, since there are quotients of times."""


def allocate(problem: RivalProblem, time_limit_s: float) -> MergeSolution | None:
    """Return the decision of the scheme.

    Args:
        time_limit_s: not used: the schemes have limits of their own.
    """
    del time_limit_s
    scheme = RIVALS[problem.scheme].make(problem.interval_s)
    jobs = [
        _contender(job, problem.step_tables[job.step_table], arrival)
        for arrival, job in enumerate(problem.jobs)
    ]
    granted = scheme.allocate(jobs, problem.gpus, problem.time_s)
    return MergeSolution(
        shares=tuple(
            Share(job_ids=(job_id,), mode="normal", gpus=gpus) for job_id, gpus in granted.items() if gpus
        )
    )


def smallest() -> RivalProblem:
    """Return a problem of a waiting job, for the scheme that takes longest to load."""
    return RivalProblem.model_validate_json(
        """
        {"scheme": "titan", "interval_s": 120, "time_s": 0, "gpus": 2,
         "step_tables": [[{"gpus": 1, "step_s": 1}]],
         "jobs": [{"job_id": "a", "submitted_s": 0, "waited_s": 0, "running_s": 0, "attained_gpu_s": 0,
                   "asked_gpus": 1, "step_table": 0, "iterations": 10, "iterations_left": 10, "gpus": 0,
                   "held_s": 0, "restarts": 0}]}
        """
    )


def _contender(job: RivalJob, steps: Sequence[StepTime], arrival: int) -> Contender:
    return Contender(
        job_id=job.job_id,
        arrival=arrival,
        submitted_s=job.submitted_s,
        waited_s=job.waited_s,
        running_s=job.running_s,
        attained_gpu_s=job.attained_gpu_s,
        asked_gpus=job.asked_gpus,
        remaining_s={step.gpus: max(job.iterations_left * step.step_s, _LEAST_S) for step in steps},
        total_s={step.gpus: max(job.iterations * step.step_s, _LEAST_S) for step in steps},
        gpus=job.gpus,
        held_s=job.held_s,
        restarts=job.restarts,
    )
