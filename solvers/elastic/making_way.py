"""Room that flexible workers make for the base demand of a job, on the servers where they are."""

from collections import Counter
from collections.abc import Iterable

from solvers.elastic.allocation import POOLS
from solvers.elastic.cluster import Cluster
from solvers.elastic.demand import Pool

_Hosted = dict[str, list[tuple[str, int, int]]]
"""By server: jobs with flexible workers there, how many real ones, and the GPUs of each."""


class VacatedRoom:
    """How many workers there would be room for if all flexible workers of some jobs were gone."""

    def __init__(self, cluster: Cluster, movable: Iterable[str]) -> None:
        self._capacities: dict[Pool, dict[int, Counter[int]]] = {
            pool: cluster.servers_by_free_gpus(pool) for pool in POOLS
        }
        """By pool and `workers_per_worker`: how many servers have so many GPUs."""
        hosted = _hosted(cluster, movable)
        for server in hosted:
            if cluster.is_open(server):
                counts = self._capacities[cluster.pool_of(server)][cluster.workers_per_worker(server)]
                free = cluster.free_of(server)
                counts[free] -= 1
                counts[free + _gpus(hosted, server)] += 1

    def room(self, gpus_per_worker: int, pool: Pool) -> int:
        """The most workers of a job, normalised, of so many GPUs each."""
        return max(
            (
                sum(servers * (gpus // gpus_per_worker) for gpus, servers in counts.items()) // factor
                for factor, counts in self._capacities[pool].items()
            ),
            default=0,
        )


def make_way(
    cluster: Cluster, movable: Iterable[str], workers: int, gpus_per_worker: int, pool: Pool
) -> list[str]:
    """Take flexible workers off servers until there is room for so many workers in one class of the pool,
    the fastest that can have it; first where the fewest GPUs must go for one more, ties by server id.

    Args:
        movable: the jobs whose flexible workers may go.
        workers: normalised.

    Returns:
        The jobs that have lost some: nobody where all of them together would not make enough room.
    """
    hosted = _hosted(cluster, movable)
    gains_by_class: dict[int, list[tuple[int, str, int]]] = {}
    for server in hosted:
        if cluster.pool_of(server) == pool and cluster.is_open(server):
            free = cluster.free_of(server)
            gain = (free + _gpus(hosted, server)) // gpus_per_worker - free // gpus_per_worker
            if gain:
                gains = gains_by_class.setdefault(cluster.workers_per_worker(server), [])
                gains.append((gpus_per_worker - free % gpus_per_worker, server, gain))
    for factor, room in cluster.class_rooms(gpus_per_worker, pool).items():
        gains, wanted = gains_by_class.get(factor, []), workers * factor - room
        if sum(gain for _, _, gain in gains) >= wanted:
            losers = _clear(cluster, hosted, sorted(gains), wanted, gpus_per_worker)
            for job_id in losers:
                cluster.drop_fractions(job_id)
            return losers
    return []


def _clear(
    cluster: Cluster, hosted: _Hosted, gains: list[tuple[int, str, int]], wanted: int, gpus_per_worker: int
) -> list[str]:
    losers: dict[str, None] = {}
    for _, server, gain in gains:
        count = min(gain, wanted)
        if count <= 0:
            break
        wanted -= count
        goal_gpus = (cluster.free_of(server) // gpus_per_worker + count) * gpus_per_worker
        for job_id, real, gpus in hosted[server]:
            missing_gpus = goal_gpus - cluster.free_of(server)
            if missing_gpus <= 0:
                break
            cluster.take_flexible(job_id, server, min(real, -(-missing_gpus // gpus)))
            losers[job_id] = None
    return list(losers)


def _hosted(cluster: Cluster, movable: Iterable[str]) -> _Hosted:
    hosted: _Hosted = {}
    for job_id in movable:
        part = cluster.parts_of(job_id).get("flexible")
        if part is not None:
            for server, real in part.workers.items():
                hosted.setdefault(server, []).append((job_id, real, part.gpus_per_worker))
    return hosted


def _gpus(hosted: _Hosted, server: str) -> int:
    return sum(real * gpus for _, real, gpus in hosted[server])
