"""Seeded instances of what elastic scheduling decides, of the size of the thesis's cluster."""

import random

from solvers.elastic.cluster import Cluster
from solvers.elastic.knapsack import ItemGroup

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
    gpus, gpus_per_worker = job_size(rng)
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


def job_size(rng: random.Random) -> tuple[int, int]:
    """GPUs of a job, and of each of its workers."""
    (gpus,) = rng.choices(list(JOB_SHARE_PCT), list(JOB_SHARE_PCT.values()))
    if gpus >= SERVER_GPUS and rng.random() < 0.5:
        return gpus, SERVER_GPUS
    return gpus, rng.choice([each for each in (1, 2, 4, 8) if each <= gpus])


def knapsack_groups(seed: int, items: int = 354) -> list[ItemGroup]:
    """Elastic jobs with so many items together; the thesis's largest knapsack has 354 (section 3.5.2)."""
    rng = random.Random(f"knapsack/{seed}")
    groups: list[ItemGroup] = []
    left = items
    while left:
        extra = min(left, rng.choice((2, 4, 8, 16)))
        left -= extra
        least = rng.randint(1, 4)
        gpus_per_worker = rng.choice((1, 2, 4, 8))
        work_s = rng.lognormvariate(9.0, 1.5)
        groups.append(
            ItemGroup(
                [gpus_per_worker * more for more in range(1, extra + 1)],
                [work_s / least - work_s / (least + more) for more in range(1, extra + 1)],
            )
        )
    return groups
