"""What a job would meet if it were submitted now: the answer to a request for a quote."""

import heapq
from collections.abc import Sequence

from schemas.elastic.outcomes import ElasticForecast
from schemas.elastic.workload import ElasticWorkload
from solvers.elastic.demand import Pool
from streams.policies.elastic.job import speedup_of
from streams.policies.elastic.turns import Turns
from streams.policies.elastic.workforce import Workforce


def forecast(
    workload: ElasticWorkload,
    workforce: Workforce,
    turns: Turns,
    pools: Sequence[Pool],
    next_round_s: float,
) -> ElasticForecast:
    """When the job would start and end if nothing else were submitted, lent or reclaimed.

    Running jobs end as they are expected to with the workers that they have. Their GPUs, and those that are
    idle, go to the job that has the turn and to shorter ones that wait, one after the other, each with its
    base demand, and then to this one. Counted are GPUs, not servers, of the pools that the job may use: the
    forecast is early where room is scattered, and late where flexible workers make way or where jobs before
    it go to another pool.
    """
    as_of_s = next_round_s if workforce.time_s is None else workforce.time_s
    now_s = max(next_round_s, as_of_s)
    speedup, work_s = speedup_of(workload), workload.work_samples / workload.samples_per_s
    shortest_s = work_s / speedup[workload.max_workers]
    free = sum(workforce.cluster.free_gpus(pool) for pool in pools)
    ends: list[tuple[float, int]] = []
    """When how many GPUs are idle again."""
    ahead: list[tuple[float, int, int, float]] = []
    """Of each job that comes before: running time or less, arrival, GPUs, and how long it would hold them."""
    for job in workforce.jobs.values():
        left_s, gpus = workforce.work_left_s(job), job.workload.gpus_per_worker
        running_s = left_s / job.speedup[job.workload.max_workers]
        if job.members:
            base, flexible = job.workload.min_workers, job.workers - job.workload.min_workers
            held = base * (job.pool in pools) + flexible * (job.flexible_pool in pools)
            ends.append((as_of_s + left_s / workforce.speed(job), held * gpus))
        elif not job.is_ending and (running_s <= shortest_s or job.job.job_id == turns.job_id):
            held_s = left_s / job.speedup[job.workload.min_workers]
            rank = -1.0 if job.job.job_id == turns.job_id else running_s
            ahead.append((rank, job.arrival, job.workload.min_workers * gpus, held_s))
    heapq.heapify(ends)
    time_s = now_s
    base_s = work_s / speedup[workload.min_workers]
    needs = [(gpus, held_s) for _, _, gpus, held_s in sorted(ahead)]
    for gpus, held_s in (*needs, (workload.min_workers * workload.gpus_per_worker, base_s)):
        while free < gpus and ends:
            end_s, freed = heapq.heappop(ends)
            time_s = max(time_s, end_s)
            free += freed
        free -= gpus
        heapq.heappush(ends, (time_s + held_s, gpus))
    return ElasticForecast(
        jobs_waiting=workforce.jobs_without_workers,
        start_s=time_s,
        earliest_end_s=time_s + shortest_s,
        latest_end_s=time_s + base_s,
    )
