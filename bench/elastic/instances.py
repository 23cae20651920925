"""Seeded instances of what elastic scheduling decides, of the size of the thesis's cluster."""

import random
from dataclasses import dataclass

from solvers.elastic.cluster import Cluster
from solvers.elastic.demand import Demand, Pool
from solvers.elastic.knapsack import Group

SERVER_GPUS = 8
TRAINING_GPUS = 3_544
INFERENCE_GPUS = 4_160
T4_PER_V100 = 3
"""Erratum L4."""

JOB_SHARE_PCT = {1: 50, 2: 15, 4: 12, 8: 12, 16: 6, 32: 3, 64: 2}
"""Of jobs, by GPUs: most have one, and those of 8 and more hold three quarters of all GPUs."""
_CHURNS = 5
"""How often the servers are filled and partly vacated again, until jobs are as scattered as they get."""
_VACATED_TO = 0.7
_MISSES = 30
"""Jobs in a row that find no room: the servers are full."""
_ELASTIC_SHARE = 0.35
"""Of jobs of 8 GPUs and more with several workers: where jobs are elastic, those hold some 36 % of GPUs
(section 3.7.1)."""


def lent_servers(seed: int, servers: int, has_elastic: bool, used_share: float = 0.92) -> Cluster:
    """Servers on loan with jobs on them, as long churn leaves them: used as much as those of the thesis
    (Figure 3.11), and placed best fit.

    Args:
        has_elastic: whether some jobs have flexible workers.
    """
    rng = random.Random(f"lent/{seed}/{has_elastic}")
    cluster = Cluster()
    for number in range(servers):
        cluster.add_server(f"s{number:04}", "loaned", SERVER_GPUS)
    jobs = 0
    for goal in [_VACATED_TO] * _CHURNS + [used_share]:
        misses = 0
        while misses < _MISSES:
            jobs += 1
            misses += not _place_one(cluster, rng, f"j{jobs:06}", has_elastic)
        live = cluster.jobs()
        rng.shuffle(live)
        while cluster.free_gpus("loaned") < (1 - goal) * servers * SERVER_GPUS:
            cluster.remove(live.pop())
    return cluster


def _place_one(cluster: Cluster, rng: random.Random, job_id: str, has_elastic: bool) -> bool:
    gpus, gpus_per_worker = _size(rng)
    workers = gpus // gpus_per_worker
    if not (has_elastic and gpus >= SERVER_GPUS and workers > 1 and rng.random() < _ELASTIC_SHARE):
        return cluster.place(job_id, workers, gpus_per_worker, "loaned", "inelastic") is not None
    base = max(1, workers * 3 // 4)
    if cluster.place(job_id, base, gpus_per_worker, "loaned", "base") is None:
        return False
    flexible = rng.randint(0, workers - base)
    if flexible:
        cluster.place(job_id, flexible, gpus_per_worker, "loaned", "flexible")
    return True


def _size(rng: random.Random) -> tuple[int, int]:
    """GPUs of a job, and of each of its workers."""
    (gpus,) = rng.choices(list(JOB_SHARE_PCT), list(JOB_SHARE_PCT.values()))
    if gpus >= SERVER_GPUS and rng.random() < 0.5:
        return gpus, SERVER_GPUS
    return gpus, rng.choice([each for each in (1, 2, 4, 8) if each <= gpus])


@dataclass(frozen=True)
class Round:
    """What a scheme is asked in one round."""

    waiting: list[Demand]
    running: list[Demand]
    free_gpus: dict[Pool, float]


def busy_round(seed: int, running: int = 1_000, waiting: int = 500) -> Round:
    """A round in which all jobs that run are elastic, and have what the training cluster and all inference
    servers, lent at once, hold."""
    rng = random.Random(f"round/{seed}")
    room: dict[Pool, float] = {"training": TRAINING_GPUS, "loaned": INFERENCE_GPUS // T4_PER_V100}
    jobs: list[Demand] = []
    for arrival in range(running):
        pool = max(room, key=lambda each: room[each])
        gpus_per_worker = rng.choice((1, 1, 2, 4))
        most = rng.choice((2, 4, 8, 16))
        # Twice its share of what is left at most, on average all of it.
        share = sum(room.values()) / (running - arrival)
        workers = min(most, max(1, round(rng.uniform(0, 2) * share / gpus_per_worker)))
        room[pool] -= workers * gpus_per_worker
        flexible = pool if workers > 1 else None
        jobs.append(_demand(rng, arrival, 1, most, gpus_per_worker, (pool,), workers, flexible))
    idle = {pool: max(0.0, left) for pool, left in room.items()}
    queue = []
    for arrival in range(running, running + waiting):
        gpus, gpus_per_worker = _size(rng)
        workers = gpus // gpus_per_worker
        is_fungible = rng.random() < 0.21
        pools: tuple[Pool, ...] = ("loaned", "training") if is_fungible else ("training",)
        queue.append(_demand(rng, arrival, workers, workers, gpus_per_worker, pools, 0, None))
    return Round(queue, jobs, idle)


def _demand(
    rng: random.Random,
    arrival: int,
    least: int,
    most: int,
    gpus_per_worker: int,
    pools: tuple[Pool, ...],
    workers: int,
    flexible_pool: Pool | None,
) -> Demand:
    return Demand(
        job_id=f"j{arrival:06}",
        arrival=arrival,
        min_workers=least,
        max_workers=most,
        gpus_per_worker=gpus_per_worker,
        remaining_work_s=rng.lognormvariate(8.0, 1.8),
        speedup=tuple(float(count) for count in range(most + 1)),
        pools=pools,
        workers=workers,
        flexible_pool=flexible_pool,
    )


def knapsack_groups(seed: int, items: int = 354) -> list[Group]:
    """Elastic jobs with so many items together; the thesis's largest knapsack has 354 (section 3.5.2)."""
    rng = random.Random(f"knapsack/{seed}")
    groups: list[Group] = []
    left = items
    while left:
        extra = min(left, rng.choice((2, 4, 8, 16)))
        left -= extra
        least = rng.randint(1, 4)
        gpus_per_worker = rng.choice((1, 2, 4, 8))
        work_s = rng.lognormvariate(9.0, 1.5)
        groups.append(
            Group(
                [gpus_per_worker * more for more in range(1, extra + 1)],
                [work_s / least - work_s / (least + more) for more in range(1, extra + 1)],
            )
        )
    return groups
