"""Turns of jobs that have waited for too long.

Shortest first (thesis, section 3.5.2) has no aging: a stream of shorter jobs makes a longer one wait forever,
and smaller jobs fill the room that a wide one needs. The thesis leaves that open.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

from streams.cell.states import Stateful
from streams.policies.elastic.elastic_job import ElasticJob
from streams.policies.elastic.workforce import Workforce

MOST_TURNS = 4
"""Most turns at a time, each of another user."""


@dataclass
class Turn:
    """Priority of a job over all jobs without a turn, until it starts.

    If there is no room, servers are held for it, which should have room at `by_s`. Before that time, only
    jobs that are over by then may start on them. So the servers become idle in the end, however long jobs run
    beyond their declarations.
    """

    job_id: str
    user: str
    held: tuple[str, ...] = ()
    by_s: float = 0.0
    review_s: float = 0.0
    """Time from which other servers may be held that have room sooner, although later than `by_s`."""
    reviews: int = 0


@dataclass(init=False, eq=False)
class QueueTurns(Stateful):
    """Turns of the jobs of one zone, in the order of their begin.

    A job that has waited for `patience_s` can be given a turn. Servers are held for it until the declared
    ends of their jobs, and other jobs that are over before may use them (backfilling with reservations, Lifka
    1995). Another turn is given only while no present turn is to be over within `patience_s`. So a job that
    waits a month for servers does not block the turns of others, and shortest first remains the rule.

    For any stream of jobs, each waiting job starts if its servers stay. Let no job run for longer than R or
    declare more than D, and let k be the least number with 2^k patience_s >= R.

    - The first turn starts its job within T = (k + 1) max(D, R) + 2^(k + 1) patience_s. Its servers are
      promised by `by_s`, at most max(D, R) after their choice. By then, jobs there are over as declared, or
      they are late. A late job counts as needing its delay once more, which is less than R. From `by_s` to
      `review_s` no job starts there, so once these are R apart, all held servers become idle. They are
      patience_s apart at first, and twice as far after each review, so k reviews suffice.
    - A turn behind n others, at most MOST_TURNS - 1, starts its job within (n + 1) T. The jobs of the other
      turns are among the jobs on its servers, and no later turn may use these servers after `by_s`.
    - Before a job with a claim, each user with an older claim is given one turn; see `_claim_s`.
    """

    all: list[Turn]
    _latest_s: dict[str, float]
    """End of the latest turn of each user with jobs."""

    def __init__(self, workforce: Workforce) -> None:
        self._workforce = workforce
        self.all, self._latest_s = [], {}

    @property
    def held(self) -> dict[str, float]:
        """Held servers, with the time by which jobs that start there must be over."""
        held: dict[str, float] = {}
        for turn in self.all:
            for server in turn.held:
                held[server] = min(turn.by_s, held.get(server, turn.by_s))
        return held

    def has(self, job_id: str) -> bool:
        """Return whether a job has a turn."""
        return any(turn.job_id == job_id for turn in self.all)

    def are_due(self, patience_s: float) -> bool:
        """Return whether a round would give a turn, or may hold other servers for one."""
        if any(self._now_s >= turn.review_s for turn in self.all):
            return True
        return self._is_next_due(patience_s) and bool(self._candidates(self._workforce.waiting, patience_s))

    def renew(self, waiting: Sequence[ElasticJob]) -> None:
        """End the turns of jobs that do not wait any more, or that could not start now even alone. The latter
        keep their claims."""
        with_turn = {turn.job_id for turn in self.all}
        jobs = [job for job in waiting if job.job.job_id in with_turn]
        still = {job.job.job_id for job in jobs}
        for turn in [turn for turn in self.all if turn.job_id not in still]:
            self.end(turn)
        able = {job.job.job_id for job in self._able(jobs)}
        self.all = [turn for turn in self.all if turn.job_id in able]

    def give_turn(self, waiting: Sequence[ElasticJob], patience_s: float) -> None:
        """Give another turn, if it is due, to the job with the oldest claim; ties go by arrival.

        Jobs that could not start now even alone on the open servers are passed over.

        Args:
            waiting: the waiting jobs, in the order of their arrival.
        """
        if not self._is_next_due(patience_s):
            return
        candidates = self._candidates(waiting, patience_s)
        if candidates:
            job = min(candidates, key=self._claim_s)
            self.all.append(Turn(job.job.job_id, job.job.user))

    def end(self, turn: Turn) -> None:
        """End a turn, because its job starts or does not wait any more."""
        self.all.remove(turn)
        users = {each.job.user for each in self._workforce.jobs.values()}
        self._latest_s[turn.user] = self._now_s
        self._latest_s = {user: latest_s for user, latest_s in self._latest_s.items() if user in users}

    def forget(self, servers: Collection[str]) -> None:
        """Hold some servers no more, because they leave the zone or change."""
        for turn in self.all:
            turn.held = tuple(server for server in turn.held if server not in servers)

    def barred(self, turn: Turn) -> list[str]:
        """Return the servers that are held for earlier turns and on which this turn's job would not be over
        in time."""
        job, barred = self._workforce.jobs[turn.job_id], dict[str, None]()
        for earlier in self._before(turn):
            if not self.is_over_by(job, earlier.by_s):
                barred.update(dict.fromkeys(earlier.held))
        return list(barred)

    def is_over_by(self, job: ElasticJob, time_s: float) -> bool:
        """Return whether a job that starts now is over by `time_s` with its base demand."""
        return self._now_s + self._workforce.base_left_s(job) <= time_s

    def hold(self, turn: Turn, patience_s: float) -> None:
        """Hold open servers for a job without room: those that will have room first. Servers held for earlier
        turns have room after the jobs of those turns, so a job that needs many servers follows turns that
        hold some of them, and not all later turns.

        Chosen servers are given up only for others that have room no later than promised, or if they are late
        by `patience_s`; this delay doubles each time. Otherwise, while jobs run longer than declared, servers
        would be given up too early again and again, and none would become idle.
        """
        job, now_s, cluster = self._workforce.jobs[turn.job_id], self._now_s, self._workforce.cluster
        places = sorted(self._places(job, self._reserved(turn)))[: job.workload.min_workers]
        servers = tuple(dict.fromkeys(server for _, server in places))
        by_s, _ = places[-1]
        is_kept = bool(turn.held) and all(cluster.server(server).is_open for server in turn.held)
        if is_kept and by_s > turn.by_s and now_s < turn.review_s:
            return
        if is_kept and now_s >= turn.review_s:
            turn.reviews += 1
        turn.held, turn.by_s = servers, by_s
        turn.review_s = by_s + patience_s * 2**turn.reviews

    def describe(self) -> list[dict[str, Any]]:
        """Describe the turns for an operator, in values that JSON has."""
        return [{**asdict(turn), "held": list(turn.held)} for turn in self.all]

    @property
    def _now_s(self) -> float:
        """Present time: rounds follow ticks, so there is one."""
        return self._workforce.time_s or 0.0

    def _is_next_due(self, patience_s: float) -> bool:
        """Return whether another turn may be given: there are few, and none should be over soon."""
        soon = (self._now_s <= turn.by_s <= self._now_s + patience_s for turn in self.all)
        return len(self.all) < MOST_TURNS and not any(soon)

    def _candidates(self, waiting: Sequence[ElasticJob], patience_s: float) -> Sequence[ElasticJob]:
        """Return the jobs that have waited for `patience_s`, of users without a turn."""
        users, now_s = {turn.user for turn in self.all}, self._now_s
        overdue = [job for job in waiting if now_s - job.waits_since_s >= patience_s]
        return self._able([job for job in overdue if job.job.user not in users])

    def _claim_s(self, job: ElasticJob) -> float:
        """Return the time since which a job waits and its user has had no turn.

        After a turn, a user follows all older claims. So each other user has at most one turn before a job
        with a claim, whatever jobs they submit, and users who submit later have none.
        """
        return max(job.waits_since_s, self._latest_s.get(job.job.user, job.waits_since_s))

    def _before(self, turn: Turn) -> Iterator[Turn]:
        """Yield the turns before one."""
        return takewhile(lambda each: each is not turn, self.all)

    def _reserved(self, turn: Turn) -> dict[str, list[tuple[float, float]]]:
        """Return (start, expected end) of the jobs of earlier turns, by held server. A late turn counts
        as delayed by the same time again."""
        reserved: dict[str, list[tuple[float, float]]] = {}
        for earlier in self._before(turn):
            start_s = self._now_s + abs(earlier.by_s - self._now_s)
            end_s = start_s + self._workforce.base_left_s(self._workforce.jobs[earlier.job_id])
            for server in earlier.held:
                reserved.setdefault(server, []).append((earlier.by_s, end_s))
        return reserved

    def _able(self, jobs: Sequence[ElasticJob]) -> list[ElasticJob]:
        """Return the jobs for which the empty open training servers have room."""
        if not jobs:
            return []
        cluster = self._workforce.cluster
        gpus = [server.gpus for server in map(cluster.server, cluster.servers("training")) if server.is_open]
        sizes = {job.workload.gpus_per_worker for job in jobs}
        rooms = {size: sum(each // size for each in gpus) for size in sizes}
        return [job for job in jobs if rooms[job.workload.gpus_per_worker] >= job.workload.min_workers]

    def _places(
        self, job: ElasticJob, reserved: Mapping[str, Sequence[tuple[float, float]]]
    ) -> Iterator[tuple[float, str]]:
        """Yield (time, server) for each worker of a job that the open training servers could hold.

        Args:
            reserved: see `_reserved`; the job is over before a reservation, or begins after it.
        """
        own_s = self._workforce.base_left_s(job)
        for time_s, server_id in self._vacancies(job.workload.gpus_per_worker):
            for start_s, end_s in reserved.get(server_id, ()):
                if time_s + own_s > start_s:
                    time_s = max(time_s, end_s)
            yield time_s, server_id

    def _vacancies(self, gpus_per_worker: int) -> Iterator[tuple[float, str]]:
        """Yield (time, server) for each worker that the open training servers could hold. Their jobs end as
        with their base demand, and flexible workers are preempted."""
        cluster, jobs = self._workforce.cluster, self._workforce.jobs
        for server_id in cluster.servers("training"):
            server = cluster.server(server_id)
            if not server.is_open:
                continue
            ends: list[tuple[float, int]] = []
            for job_id in server.jobs:
                firm = sum(
                    part.workers.get(server_id, 0) * part.gpus_per_worker
                    for kind, part in cluster.parts_of(job_id).items()
                    if kind != "flexible"
                )
                ends.append((self._now_s + self._workforce.base_left_s(jobs[job_id]), firm))
            free = server.gpus - sum(firm for _, firm in ends)
            yield from [(self._now_s, server_id)] * (free // gpus_per_worker)
            for end_s, firm in sorted(ends):
                more = (free + firm) // gpus_per_worker - free // gpus_per_worker
                yield from [(end_s, server_id)] * more
                free += firm
