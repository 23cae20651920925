"""What a job would meet if it were submitted now: the answer to a request for a quote."""

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from schemas.elastic.outcomes import ElasticForecast
from schemas.elastic.workload import ElasticWorkload
from solvers.elastic.demand import Pool
from streams.policies.elastic.job import ElasticJob, speedup_of
from streams.policies.elastic.turns import Turns
from streams.policies.elastic.workforce import Workforce

MOST_LOOKS = 100_000
"""At jobs that wait, of one quote: some tens of milliseconds."""
MOST_PASSES = 8
"""Over jobs whose patience ends before the start: each may put it off, so that more come before it."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class RoundTimes:
    """When a zone gives jobs workers."""

    next_s: float
    interval_s: float
    patience_s: float
    """After so long in the queue a job can be given a turn."""

    def first_from(self, time_s: float) -> float:
        """The first round that is not before a time."""
        return math.ceil(time_s / self.interval_s - _ROUNDING) * self.interval_s


@dataclass(frozen=True)
class _Waiting:
    """A job in the queue, or the one that is asked for."""

    gpus: int
    held_s: float
    """How long it would hold them."""


@dataclass
class _Room:
    """GPUs as they become idle."""

    times: RoundTimes
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
        """Wait for the round after the next end."""
        end_s, freed = heapq.heappop(self.ends)
        self.time_s = max(self.time_s, self.times.first_from(end_s))
        self.free += freed


def forecast(
    workload: ElasticWorkload,
    workforce: Workforce,
    turns: Turns,
    pools: Sequence[Pool],
    times: RoundTimes,
) -> ElasticForecast:
    """When the job would start and end if nothing else were submitted, lent or reclaimed.

    Running jobs end as they are expected to with the workers that they have; their flexible workers make way
    before that. GPUs go to jobs that have a turn and to shorter ones that wait, each with its base demand,
    and to this one; whoever does not fit is passed over. Longer jobs whose patience ends before this one
    would start come before it, one of each user. Counted are GPUs, not servers, of the pools that the job may
    use, but for servers that are held for another: the forecast is early where room is scattered, and late
    where jobs before it go to another pool or leave it the GPUs that it needs.
    """
    as_of_s = times.next_s if workforce.time_s is None else workforce.time_s
    now_s = max(times.next_s, as_of_s)
    speedup, work_s = speedup_of(workload), workload.work_samples / workload.samples_per_s
    shortest_s, base_s = work_s / speedup[workload.max_workers], work_s / speedup[workload.min_workers]
    own = _Waiting(workload.min_workers * workload.gpus_per_worker, base_s)
    queued = [job for job in workforce.jobs.values() if not job.members and not job.is_ending]
    first = [_waiting(workforce, job) for job in queued if turns.has(job.job.job_id)]
    others = [job for job in queued if not turns.has(job.job.job_id)]
    lengths_s = {job.job.job_id: workforce.shortest_left_s(job) for job in others}
    shorter = sorted(
        (job for job in others if lengths_s[job.job.job_id] <= shortest_s),
        key=lambda job: (lengths_s[job.job.job_id], job.arrival),
    )
    ahead = [_waiting(workforce, job) for job in shorter]
    held = turns.held

    def room(without: Collection[str] = ()) -> _Room:
        return _Room(times, now_s, *_gpus(workforce, pools, without, as_of_s))

    start_s = _passing_over(room(held), [*([] if held else first), *ahead, own], own)
    if start_s is None:
        start_s = _in_order(room(), [*first, *ahead, own])
    longer: dict[str, ElasticJob] = {}
    for job in others:
        if lengths_s[job.job.job_id] > shortest_s:
            longer.setdefault(job.job.user, job)
    for _ in range(MOST_PASSES):
        overdue = [job for job in longer.values() if job.waits_since_s + times.patience_s <= start_s]
        if not overdue:
            break
        for job in overdue:
            del longer[job.job.user]
            first.append(_waiting(workforce, job))
        start_s = max(start_s, _in_order(room(), [*first, own]))
    return ElasticForecast(
        jobs_waiting=workforce.jobs_without_workers,
        start_s=start_s,
        earliest_end_s=start_s + shortest_s,
        latest_end_s=start_s + base_s,
    )


def _waiting(workforce: Workforce, job: ElasticJob) -> _Waiting:
    gpus = job.workload.min_workers * job.workload.gpus_per_worker
    return _Waiting(gpus, workforce.base_left_s(job))


def _gpus(
    workforce: Workforce, pools: Sequence[Pool], without: Collection[str], as_of_s: float
) -> tuple[float, list[tuple[float, float]]]:
    """How many of the pools' GPUs are idle, those of some servers left out, and when how many others are."""
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
    return free, ends


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
