"""Speedup of a job with w workers over one: the linear curve, and the imperfect one of the thesis.

A curve has `max_workers + 1` values, the first 0 and the second 1, and never falls; see `Demand.speedup`.
"""

SCALING_LOSS = 0.2
"""Lost fraction of the speed of a worker beyond the base demand (thesis, section 3.7.2)."""


def linear_speedup(max_workers: int) -> tuple[float, ...]:
    """Return the curve on which every worker adds as much as the first (thesis, section 3.5)."""
    return tuple(float(workers) for workers in range(max_workers + 1))


def imperfect_speedup(min_workers: int, max_workers: int, loss: float = SCALING_LOSS) -> tuple[float, ...]:
    """Return the curve on which every worker beyond the base demand adds `1 - loss` (thesis, section 3.7.2).

    In another reading, losses add up from worker to worker. In this one, a job with twice its base demand is
    10 % slower than with linear scaling, so it takes 11 % longer: the thesis measures 10.54 % where all jobs
    have that range (Ideal).
    """
    base = linear_speedup(min_workers)
    return base + tuple(min_workers + (1 - loss) * more for more in range(1, max_workers - min_workers + 1))
