"""What a job would meet if it were submitted now: the answer to a request for a quote."""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from schemas.elastic.outcomes import ElasticForecast
from schemas.elastic.workload import ElasticWorkload
from solvers.elastic.demand import Pool
from streams.policies.elastic.job import speedup_of
from streams.policies.elastic.turns import Turns
from streams.policies.elastic.workforce import Workforce

MOST_LOOKS = 100_000
"""At jobs that wait, of one quote: some tens of milliseconds."""
_ROUNDING = 1e-9


@dataclass(order=True)
class _Waiting:
    """A job that comes before the one that is asked for, or that one itself."""

    rank_s: float
    """Its running time; less for one that has the turn."""
    arrival: int
    gpus: int = field(compare=False)
    held_s: float = field(compare=False)
    """How long it would hold them."""


@dataclass
class _Room:
    """GPUs as they become idle."""

    time_s: float
    free: float
    ends: list[tuple[float, float]]
    """A heap: when how many GPUs are idle again."""

    def fits(self, gpus: int) -> bool:
        """Whether so many are idle; parts of GPUs, of slower ones, add up to whole ones but for rounding."""
        return gpus <= self.free + _ROUNDING

    def take(self, job: _Waiting) -> None:
        """A job starts."""
        self.free -= job.gpus
        heapq.heappush(self.ends, (self.time_s + job.held_s, job.gpus))

    def pass_on(self) -> None:
        """Wait for the next end."""
        end_s, freed = heapq.heappop(self.ends)
        self.time_s = max(self.time_s, end_s)
        self.free += freed


def forecast(
    workload: ElasticWorkload,
    workforce: Workforce,
    turns: Turns,
    pools: Sequence[Pool],
    next_round_s: float,
) -> ElasticForecast:
    """When the job would start and end if nothing else were submitted, lent or reclaimed.

    Running jobs end as they are expected to with the workers that they have; their flexible workers make way
    before that. GPUs go to the job that has the turn and to shorter ones that wait, each with its base
    demand, and to this one; whoever does not fit is passed over. Counted are GPUs, not servers, of the pools
    that the job may use, but for servers that are held for another: the forecast is early where room is
    scattered, and late where jobs before it go to another pool.
    """
    as_of_s = next_round_s if workforce.time_s is None else workforce.time_s
    now_s = max(next_round_s, as_of_s)
    speedup, work_s = speedup_of(workload), workload.work_samples / workload.samples_per_s
    shortest_s, base_s = work_s / speedup[workload.max_workers], work_s / speedup[workload.min_workers]
    own = _Waiting(shortest_s, 2**62, workload.min_workers * workload.gpus_per_worker, base_s)
    ahead = _ahead(workforce, turns, shortest_s)
    others = [job for job in ahead if job.rank_s >= 0] if turns.held else ahead
    start_s = _passing_over(_room(workforce, pools, turns.held, as_of_s, now_s), [*others, own], own)
    if start_s is None:
        start_s = _in_order(_room(workforce, pools, (), as_of_s, now_s), [*ahead, own])
    return ElasticForecast(
        jobs_waiting=workforce.jobs_without_workers,
        start_s=start_s,
        earliest_end_s=start_s + shortest_s,
        latest_end_s=start_s + base_s,
    )


def _ahead(workforce: Workforce, turns: Turns, shortest_s: float) -> list[_Waiting]:
    """The jobs that wait and come before one of this running time, in their order."""
    ahead: list[_Waiting] = []
    for job in workforce.jobs.values():
        running_s, has_turn = workforce.shortest_left_s(job), job.job.job_id == turns.job_id
        if not job.members and not job.is_ending and (running_s <= shortest_s or has_turn):
            gpus = job.workload.min_workers * job.workload.gpus_per_worker
            order_s = -1.0 if has_turn else running_s
            ahead.append(_Waiting(order_s, job.arrival, gpus, workforce.base_left_s(job)))
    return sorted(ahead)


def _room(
    workforce: Workforce, pools: Sequence[Pool], without: Collection[str], as_of_s: float, now_s: float
) -> _Room:
    """The pools' GPUs, those of some servers left out."""
    cluster = workforce.cluster
    free = sum(cluster.free_gpus(pool) for pool in pools)
    free -= sum(server.free for server in map(cluster.server, without) if server.is_open)
    ends: list[tuple[float, float]] = []
    for job_id in cluster.jobs():
        job = workforce.jobs[job_id]
        for kind, part in cluster.parts_of(job_id).items():
            if part.pool not in pools:
                continue
            workers = sum(count for server, count in part.workers.items() if server not in without)
            gpus = workers * part.gpus_per_worker / part.workers_per_worker
            if kind == "flexible":
                free += gpus
            elif gpus:
                ends.append((as_of_s + workforce.work_left_s(job) / workforce.speed(job), gpus))
    heapq.heapify(ends)
    return _Room(now_s, free, ends)


def _passing_over(room: _Room, waiting: list[_Waiting], own: _Waiting) -> float | None:
    """When one of these jobs starts, where each that fits does so before those behind it; None where that is
    never, or cannot be told with so many looks."""
    looks = 0
    while True:
        left: list[_Waiting] = []
        for job in waiting:
            looks += 1
            if not room.fits(job.gpus):
                left.append(job)
            elif job is own:
                return room.time_s
            else:
                room.take(job)
        waiting = left
        if not room.ends or looks > MOST_LOOKS:
            return None
        least = min(job.gpus for job in waiting)
        while not room.fits(least) and room.ends:
            room.pass_on()
        if not room.fits(least):
            return None


def _in_order(room: _Room, waiting: Sequence[_Waiting]) -> float:
    """When the last of these jobs starts, where each waits for those before it."""
    for job in waiting:
        while not room.fits(job.gpus) and room.ends:
            room.pass_on()
        room.take(job)
    return room.time_s
