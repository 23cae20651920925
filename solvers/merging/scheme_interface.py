"""Interface of schemes of allocation, and sizes of jobs for numbers of GPUs that may be invalid for them.

A scheme gives each job a number of GPUs that is valid for the job. Placement on nodes comes later.
"""

from collections.abc import Iterable, Mapping, Sequence
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


class RivalScheme(Protocol):
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


def size_within(sizes: Iterable[int], most_gpus: float) -> int:
    """Return the largest size that is not above a number of GPUs, else the smallest.

    Args:
        sizes: ascending, at least one.
    """
    found, *larger = sizes
    for size in larger:
        if size <= most_gpus:
            found = size
    return found


def fixed_size(job: Contender, gpus: int) -> int:
    """Return the size for a scheme that never changes a job's size: the requested one.

    If that is no size of the job, because fewer GPUs are as fast or its batch cannot be split so, it is the
    next smaller one. A job that requests more than all GPUs, for example after nodes have left, gets all of
    them: otherwise it would wait forever.
    """
    return size_within(job.remaining_s, min(job.asked_gpus, gpus))


def serve_in_order(jobs: Iterable[Contender], gpus: int) -> dict[str, int]:
    """Return the fixed size by job, as far as GPUs suffice. A job that does not fit is skipped."""
    granted: dict[str, int] = {}
    left = gpus
    for job in jobs:
        size = fixed_size(job, gpus)
        if size <= left:
            granted[job.job_id] = size
            left -= size
    return granted


def by_arrival(jobs: Iterable[Contender]) -> list[Contender]:
    """Sort jobs by arrival, the earliest first."""
    return sorted(jobs, key=lambda job: job.arrival)


def grow_in_rounds(sizes: dict[str, int], jobs: Sequence[tuple[Contender, int]], left_gpus: int) -> int:
    """Allocate the remaining GPUs in rounds: each job in turn grows to its next size if that fits.

    Args:
        sizes: present size by job; changed in place.
        jobs: jobs in the order of their turns, each with its largest allowed size.

    Returns:
        The number of GPUs left.
    """
    growing = list(jobs)
    while growing:
        still = []
        for job, most in growing:
            size = sizes.get(job.job_id, 0)
            following = next((larger for larger in job.remaining_s if larger > size), None)
            if following is not None and following <= most and following - size <= left_gpus:
                sizes[job.job_id] = following
                left_gpus -= following - size
                still.append((job, most))
        growing = still
    return left_gpus
