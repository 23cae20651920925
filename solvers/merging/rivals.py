"""Allocations by the schemes to which merging is compared, made in a solver process."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from schemas.merging.problems import MergeSolution, RivalJob, RivalProblem, Share, StepTime
from solvers.merging.rival_schemes import (
    FixedBatchPollux,
    Optimus,
    ShortestRemainingTimeFirst,
    Themis,
    Tiresias,
)
from solvers.merging.scheme_interface import Contender, RivalScheme


class Rival(NamedTuple):
    """Scheme with the settings of section 7.1."""

    make: Callable[[float], RivalScheme]
    """Function that makes the scheme for an interval of calls in seconds."""
    interval_s: float
    """Published interval of decisions."""


def _titan(interval_s: float) -> RivalScheme:
    from solvers.merging.titan import Titan  # Pyomo takes a second to import.

    return Titan(interval_s=interval_s)


RIVALS: Mapping[str, Rival] = MappingProxyType(
    {
        "srtf": Rival(lambda _: ShortestRemainingTimeFirst(), 120.0),
        "tiresias": Rival(lambda _: Tiresias(), 120.0),
        "optimus": Rival(lambda _: Optimus(), 300.0),
        "pollux": Rival(lambda _: FixedBatchPollux(), 300.0),
        "themis": Rival(lambda interval_s: Themis(interval_s=interval_s), 120.0),
        "titan": Rival(_titan, 120.0),
    }
)
"""Schemes by name. Leases of Themis are 600 s. Titan's interval is that of the published values used for
comparison, since section 7.1 does not state it."""


_LEAST_S = 1e-9
"""Least duration. Avoids division by zero."""


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
