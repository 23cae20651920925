"""Sizes of jobs for numbers of GPUs that may be invalid for them."""

from collections.abc import Iterable, Sequence

from solvers.merging.scheme import Contender


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
