"""Allocations by the schemes that merging is compared with, as a solver answers them."""

from schemas.merging.problems import MergeSolution, RivalJob, RivalProblem, Share
from solvers.merging.scheme import Contender
from solvers.merging.schemes import RIVALS


def allocate(problem: RivalProblem, time_limit_s: float) -> MergeSolution | None:
    """What the scheme decides.

    Args:
        time_limit_s: is not needed: the schemes have limits of their own.
    """
    del time_limit_s
    scheme = RIVALS[problem.scheme].make(problem.interval_s)
    jobs = [_contender(job, arrival) for arrival, job in enumerate(problem.jobs)]
    granted = scheme.allocate(jobs, problem.gpus, problem.time_s)
    return MergeSolution(
        shares=tuple(
            Share(job_ids=(job_id,), mode="normal", gpus=gpus) for job_id, gpus in granted.items() if gpus
        )
    )


def smallest() -> RivalProblem:
    """A job that waits, for the scheme that takes longest to load."""
    return RivalProblem.model_validate_json(
        """
        {"scheme": "titan", "interval_s": 120, "time_s": 0, "gpus": 2,
         "jobs": [{"job_id": "a", "submitted_s": 0, "waited_s": 0, "running_s": 0, "attained_gpu_s": 0,
                   "asked_gpus": 1, "sizes": [{"gpus": 1, "remaining_s": 10, "total_s": 10}], "gpus": 0,
                   "held_s": 0, "restarts": 0}]}
        """
    )


def _contender(job: RivalJob, arrival: int) -> Contender:
    return Contender(
        job_id=job.job_id,
        arrival=arrival,
        submitted_s=job.submitted_s,
        waited_s=job.waited_s,
        running_s=job.running_s,
        attained_gpu_s=job.attained_gpu_s,
        asked_gpus=job.asked_gpus,
        remaining_s={size.gpus: size.remaining_s for size in job.sizes},
        total_s={size.gpus: size.total_s for size in job.sizes},
        gpus=job.gpus,
        held_s=job.held_s,
        restarts=job.restarts,
    )
