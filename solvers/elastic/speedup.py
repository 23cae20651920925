"""How fast a job is with w workers over one: the linear curve, and the thesis's imperfect one.

A curve has `max_workers + 1` values, the first 0 and the second 1, and never falls; see `Demand.speedup`.
"""

SCALING_LOSS = 0.2
"""Of what a worker beyond the base demand brings (thesis, section 3.7.2)."""


def linear_speedup(max_workers: int) -> tuple[float, ...]:
    """Every worker brings as much as the first (thesis, section 3.5)."""
    return tuple(float(workers) for workers in range(max_workers + 1))


def imperfect_speedup(min_workers: int, max_workers: int, loss: float = SCALING_LOSS) -> tuple[float, ...]:
    """Every worker beyond the base demand brings `1 - loss` of one (thesis, section 3.7.2).

    Another reading lets the losses add up from worker to worker. With this one, a job with twice its base
    demand is 10 % slower than with linear scaling, so that it takes 11 % longer: the thesis measures 10.54 %
    where all jobs have that range (Ideal).
    """
    base = linear_speedup(min_workers)
    return base + tuple(min_workers + (1 - loss) * more for more in range(1, max_workers - min_workers + 1))
