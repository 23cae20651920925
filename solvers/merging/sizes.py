"""Which of its sizes a job gets, where it is told a number of GPUs that may be none of them."""

from collections.abc import Iterable, Sequence

from solvers.merging.scheme import Contender


def size_within(sizes: Iterable[int], most_gpus: float) -> int:
    """The largest that is not above a number of GPUs, else the smallest.

    Args:
        sizes: ascending, one at least.
    """
    found, *larger = sizes
    for size in larger:
        if size <= most_gpus:
            found = size
    return found


def fixed_size(job: Contender, gpus: int) -> int:
    """What a scheme that never changes a job's size gives it: what was asked for.

    Where that is no size of the job, since fewer GPUs are as fast or its batch cannot be split so, it is the
    next smaller one. Of a job that asks for more than there is, as after nodes have left, it is what there
    is: else it would wait forever.
    """
    return size_within(job.remaining_s, min(job.asked_gpus, gpus))


def serve_in_order(jobs: Iterable[Contender], gpus: int) -> dict[str, int]:
    """By job, its fixed size, as far as GPUs last. A job that does not fit is passed over."""
    granted: dict[str, int] = {}
    left = gpus
    for job in jobs:
        size = fixed_size(job, gpus)
        if size <= left:
            granted[job.job_id] = size
            left -= size
    return granted


def by_arrival(jobs: Iterable[Contender]) -> list[Contender]:
    """The earliest first."""
    return sorted(jobs, key=lambda job: job.arrival)


def grow_in_rounds(sizes: dict[str, int], jobs: Sequence[tuple[Contender, int]], left_gpus: int) -> int:
    """Hand out what is left, in rounds: each job in turn goes to its next size, if that fits.

    Args:
        sizes: by job, what it has; changed in place.
        jobs: in the order of their turns, each with the most that it may have.

    Returns:
        how many GPUs are left over.
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
