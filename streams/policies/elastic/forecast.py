"""Forecast for a job that is submitted now: the answer to a request for a quote."""

import heapq
import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter

from schemas.elastic.outcomes import ElasticForecast
from schemas.elastic.workload import ElasticWorkload
from solvers.elastic.demand import Pool
from streams.policies.elastic.elastic_job import QueueEntry
from streams.policies.elastic.expectation import Expectation
from streams.policies.elastic.turns import QueueTurns
from streams.policies.elastic.workforce import Workforce

MOST_LOOKS = 50_000
"""Most comparisons of the first waiting jobs of each size, in one quote: some ten milliseconds."""
MOST_PASSES = 8
"""Most passes that add jobs whose patience ends before the start. Each pass may delay the start, so that
further jobs precede it."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class RoundTimes:
    """Times at which a zone assigns workers."""

    next_s: float
    interval_s: float
    patience_s: float
    """Time in the queue after which a job can be given a turn."""

    def first_from(self, time_s: float) -> float:
        """Return the time of the first round at a time or later."""
        return math.ceil(time_s / self.interval_s - _ROUNDING) * self.interval_s


@dataclass(frozen=True)
class _Waiting:
    """A job in the queue, or the job of the request."""

    gpus: int
    held_s: float
    """Duration for which it would hold them."""


@dataclass
class _Room:
    """Idle GPUs, with the times at which others become idle."""

    times: RoundTimes
    time_s: float
    free: float
    ends: list[tuple[float, float]]
    """Heap of (time, GPUs that become idle)."""

    def fits(self, gpus: int) -> bool:
        """Return whether enough GPUs are idle. Parts of slower GPUs add up to whole ones, except for
        rounding."""
        return gpus <= self.free + _ROUNDING

    def start(self, job: _Waiting) -> None:
        self.free -= job.gpus
        heapq.heappush(self.ends, (self.time_s + job.held_s, job.gpus))

    def advance(self) -> None:
        """Advance to the round after the next end of a job."""
        end_s, freed = heapq.heappop(self.ends)
        self.time_s = max(self.time_s, self.times.first_from(end_s))
        self.free += freed


def forecast(
    workload: ElasticWorkload,
    expected: Expectation,
    workforce: Workforce,
    turns: QueueTurns,
    pools: Sequence[Pool],
    times: RoundTimes,
) -> ElasticForecast:
    """Forecast the start and end of a job if nothing else is submitted, lent or reclaimed.

    Running jobs end as expected with their present workers; their flexible workers are preempted earlier if
    needed. GPUs go to jobs with a turn, to shorter waiting jobs and to this one, each with its base demand; a
    job that does not fit is passed over. Longer jobs precede it, one per user, if they get a turn before it
    starts. The forecast counts GPUs, not servers, of the pools that the job may use, without servers that are
    held for other jobs. So it is early if room is scattered, and late if jobs before it use another pool or
    leave the GPUs that it needs.
    """
    as_of_s = times.next_s if workforce.time_s is None else workforce.time_s
    now_s = max(times.next_s, as_of_s)
    speedup, work_s = expected.speedup, workload.work_samples / expected.samples_per_s
    shortest_s, base_s = work_s / speedup[workload.max_workers], work_s / speedup[workload.min_workers]
    own = _Waiting(workload.min_workers * workload.gpus_per_worker, base_s)
    with_turn = {turn.job_id for turn in turns.all}
    queued = workforce.queue()
    first = [_waiting(each) for each in queued if each.job.job.job_id in with_turn]
    others = [each for each in queued if each.job.job.job_id not in with_turn]
    # Stable: jobs of equal duration stay in the order of their arrival.
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
        speed_from=expected.speed_from,
        duration_error_pct=None if expected.relative_error is None else 100 * expected.relative_error,
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
    """Return the start of `own`, if each job that fits starts before those behind it; None if it never
    starts, or if `MOST_LOOKS` do not suffice."""
    # Places in `waiting`, by ascending size. A size that does not fit fits only after GPUs become idle, so
    # the next job to start is the first among the sizes that fit.
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
            room.start(job)
            if not best:
                queues = [(gpus, places) for gpus, places in queues if places]
            continue
        if looks > MOST_LOOKS:
            return None
        while not room.fits(queues[0][0]) and room.ends:
            room.advance()
        if not room.fits(queues[0][0]):
            return None


def _in_order(room: _Room, waiting: Sequence[_Waiting]) -> float:
    """Return the start of the last of some jobs, if each waits for those before it."""
    for job in waiting:
        while not room.fits(job.gpus) and room.ends:
            room.advance()
        room.start(job)
    return room.time_s
