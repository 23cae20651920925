"""Forecast for a job if it were submitted now: the answer to a request for a quote."""

import heapq
import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter

from schemas.elastic.outcomes import ElasticForecast
from schemas.elastic.workload import ElasticWorkload
from solvers.elastic.demand import Pool
from streams.policies.elastic.job import QueueEntry, speedup_of
from streams.policies.elastic.turns import Turns
from streams.policies.elastic.workforce import Workforce

MOST_LOOKS = 50_000
"""At the first jobs of each size that wait, of one quote: some ten milliseconds."""
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
    """Time that it would hold them."""


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
    with_turn = {turn.job_id for turn in turns.all}
    queued = workforce.queue()
    first = [_waiting(each) for each in queued if each.job.job.job_id in with_turn]
    others = [each for each in queued if each.job.job.job_id not in with_turn]
    # Stable, so that those of equal lengths stay in the order of their arrival.
    shorter = sorted((each for each in others if each.shortest_s <= shortest_s), key=attrgetter("shortest_s"))
    ahead = [_waiting(each) for each in shorter]
    held = turns.held

    def room(without: Collection[str] = ()) -> _Room:
        return _Room(times, now_s, *_gpus(workforce, pools, without, as_of_s))

    start_s = _passing_over(room(held), [*([] if held else first), *ahead, own], own)
    if start_s is None:
        start_s = _in_order(room(), [*first, *ahead, own])
    longer: dict[str, QueueEntry] = {}
    for each in others:
        if each.shortest_s > shortest_s:
            longer.setdefault(each.job.job.user, each)
    for _ in range(MOST_PASSES):
        overdue = [each for each in longer.values() if each.job.waits_since_s + times.patience_s <= start_s]
        if not overdue:
            break
        for each in overdue:
            del longer[each.job.job.user]
            first.append(_waiting(each))
        start_s = max(start_s, _in_order(room(), [*first, own]))
    return ElasticForecast(
        jobs_waiting=workforce.jobs_without_workers,
        start_s=start_s,
        earliest_end_s=start_s + shortest_s,
        latest_end_s=start_s + base_s,
    )


def _waiting(queued: QueueEntry) -> _Waiting:
    return _Waiting(queued.gpus, queued.base_s)


def _gpus(
    workforce: Workforce, pools: Sequence[Pool], without: Collection[str], as_of_s: float
) -> tuple[float, list[tuple[float, float]]]:
    """Return the idle GPUs of the pools without some servers, and the times at which others become idle."""
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
    # By size, from the smallest: places in `waiting`, in order. What does not fit once fits no sooner than
    # GPUs become idle, so the next to start is the first among the sizes that fit.
    by_size: dict[int, deque[int]] = {}
    for place, job in enumerate(waiting):
        by_size.setdefault(job.gpus, deque()).append(place)
    queues = sorted(by_size.items())
    looks = 0
    while True:
        best: deque[int] | None = None
        for gpus, places in queues:
            if not room.fits(gpus):
                break
            looks += 1
            if best is None or places[0] < best[0]:
                best = places
        if best is not None:
            job = waiting[best.popleft()]
            if job is own:
                return room.time_s
            room.take(job)
            if not best:
                queues = [(gpus, places) for gpus, places in queues if places]
            continue
        if looks > MOST_LOOKS:
            return None
        while not room.fits(queues[0][0]) and room.ends:
            room.pass_on()
        if not room.fits(queues[0][0]):
            return None


def _in_order(room: _Room, waiting: Sequence[_Waiting]) -> float:
    """When the last of these jobs starts, where each waits for those before it."""
    for job in waiting:
        while not room.fits(job.gpus) and room.ends:
            room.pass_on()
        room.take(job)
    return room.time_s
