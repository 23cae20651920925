"""Interface of schemes of allocation.

A scheme gives each job a number of GPUs that is valid for the job. Placement on nodes comes later.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class Contender(NamedTuple):
    """Job that waits for GPUs or has some."""

    job_id: str
    arrival: int
    """Rank by submission, ascending. No two jobs have the same."""
    submitted_s: float
    """Time of submission, in Unix seconds."""
    waited_s: float
    """Total time in which it had no GPUs and could have used some."""
    running_s: float
    """Total time in which it had GPUs."""
    attained_gpu_s: float
    """Total GPU-seconds."""
    asked_gpus: int
    """Requested GPUs. Schemes that never change a job's size give it so many, or none."""
    remaining_s: Mapping[int, float]
    """Estimated remaining duration (T_{i,a}) by number of GPUs, ascending and never empty. A number that is
    no faster than a smaller one is left out."""
    total_s: Mapping[int, float]
    """Estimated duration of the whole job, by the same numbers of GPUs."""
    gpus: int
    """Present GPUs; 0 for a job that waits."""
    held_s: float = 0.0
    """Time since it started or its size last changed; 0 for a job that waits. Leases of Themis end by it, and
    never if it is left out."""
    restarts: int = 0
    """Number of stops and changes of size so far. Pollux weighs a further one by it."""


class Scheme(Protocol):
    """Scheme of allocating GPUs. Deterministic: ties go by `arrival`."""

    def allocate(self, jobs: Sequence[Contender], gpus: int, time_s: float) -> dict[str, int]:
        """Decide one round.

        Args:
            jobs: jobs in the order of their arrival.
            gpus: number of GPUs to allocate.
            time_s: present time, in Unix seconds.

        Returns:
            GPUs from now on, by job: numbers of its `remaining_s`, together at most `gpus`. A job that is
            left out has none.
        """
