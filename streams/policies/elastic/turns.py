"""Jobs that have waited for too long come first, in turn.

Shortest first (thesis, section 3.5.2) has no aging: whoever submits shorter jobs all the time keeps a longer
one waiting for ever, and smaller jobs fill the room that a wide one needs. The thesis leaves that open.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from itertools import takewhile
from typing import Any

from streams.policies.elastic.job import ElasticJob
from streams.policies.elastic.workforce import Workforce

MOST_TURNS = 4
"""At a time, each of another user."""


@dataclass
class Turn:
    """Of a job that comes before all that have none. It lasts until the job starts.

    Servers are held for it where there is no room: until `by_s`, when they should have room, what is over by
    then may start on them, and nothing after that. So however long jobs run on that declared less, the
    servers become idle in the end.
    """

    job_id: str
    user: str
    held: tuple[str, ...] = ()
    by_s: float = 0.0
    review_s: float = 0.0
    """From then on, other servers may be held that will have room sooner, though not as soon as `by_s`."""
    reviews: int = 0


class Turns:
    """Who has a turn in one zone, in the order in which they were given.

    A job that has waited for `patience_s` can be given one. Servers are held for it until its jobs' declared
    ends, and other jobs that are over before may use them (backfilling with reservations, Lifka 1995).
    Another turn is given only while no other is to be over within `patience_s`: a job for which servers
    become free in a month must not keep those of others waiting, nor should shortest first be given up.

    However many jobs of whatever lengths come, each that waits starts, if its servers stay. Let no job run
    for longer than R, nor declare more than D, and let k be the least number with 2^k patience_s >= R.

    - A turn before which there is no other starts within T = (k + 1) max(D, R) + 2^(k + 1) patience_s. It is
      promised servers by `by_s`, at most max(D, R) from when they are chosen: what runs there is over by
      then as declared, or is late, and counts as much longer, less than R. From `by_s` to `review_s` nothing
      starts there, so once these are R apart, all servers that are held become idle. They are patience_s
      apart at first, and twice as much after each review, so that k reviews are enough.
    - A turn behind n others, at most MOST_TURNS - 1, starts within (n + 1) T: jobs of those are among what
      runs on its servers, and no turn that is given later may use these after `by_s`.
    - Before a job with a claim, each user who has had one for longer is given one turn; see `_claim_s`.
    """

    def __init__(self, workforce: Workforce) -> None:
        self._workforce = workforce
        self._latest_s: dict[str, float] = {}
        """When the latest turn of each user was over; only users who have jobs."""
        self.all: list[Turn] = []

    @property
    def held(self) -> dict[str, float]:
        """Servers that are held, and until when jobs must be over that start there."""
        held: dict[str, float] = {}
        for turn in self.all:
            for server in turn.held:
                held[server] = min(turn.by_s, held.get(server, turn.by_s))
        return held

    def has(self, job_id: str) -> bool:
        """Whether a job has a turn."""
        return any(turn.job_id == job_id for turn in self.all)

    def are_due(self, patience_s: float) -> bool:
        """Whether a round would give a turn, or might hold other servers for one."""
        if any(self._now_s >= turn.review_s for turn in self.all):
            return True
        return self._is_next_due(patience_s) and bool(self._candidates(self._workforce.waiting, patience_s))

    def renew(self, waiting: Sequence[ElasticJob]) -> None:
        """End the turns of jobs that wait no more, or that could not start at present even alone. The latter
        keep their claims."""
        with_turn = {turn.job_id for turn in self.all}
        jobs = [job for job in waiting if job.job.job_id in with_turn]
        still = {job.job.job_id for job in jobs}
        for turn in [turn for turn in self.all if turn.job_id not in still]:
            self.end(turn)
        able = {job.job.job_id for job in self._able(jobs)}
        self.all = [turn for turn in self.all if turn.job_id in able]

    def give(self, waiting: Sequence[ElasticJob], patience_s: float) -> None:
        """Give another turn, if it is time for one: to the job whose claim is the oldest; ties go by arrival.

        Passed over are jobs that could not start now even if they were alone on the open servers.

        Args:
            waiting: in the order of their arrival.
        """
        if not self._is_next_due(patience_s):
            return
        candidates = self._candidates(waiting, patience_s)
        if candidates:
            job = min(candidates, key=self._claim_s)
            self.all.append(Turn(job.job.job_id, job.job.user))

    def end(self, turn: Turn) -> None:
        """Its job starts, or waits no more."""
        self.all.remove(turn)
        users = {each.job.user for each in self._workforce.jobs.values()}
        self._latest_s[turn.user] = self._now_s
        self._latest_s = {user: latest_s for user, latest_s in self._latest_s.items() if user in users}

    def forget(self, servers: Collection[str]) -> None:
        """Servers leave the zone, or return to it as others."""
        for turn in self.all:
            turn.held = tuple(server for server in turn.held if server not in servers)

    def barred(self, turn: Turn) -> list[str]:
        """Servers that are held for earlier turns, and on which its job would not be over in time."""
        job, barred = self._workforce.jobs[turn.job_id], dict[str, None]()
        for earlier in self._before(turn):
            if not self.is_over_by(job, earlier.by_s):
                barred.update(dict.fromkeys(earlier.held))
        return list(barred)

    def is_over_by(self, job: ElasticJob, time_s: float) -> bool:
        """Whether a job that starts now is over by then with its base demand."""
        return self._now_s + self._workforce.base_left_s(job) <= time_s

    def hold(self, turn: Turn, patience_s: float) -> None:
        """Hold open servers for a job that has no room: those that will have room first. Servers that are
        held for earlier turns have it once the jobs of these are over, so a job that needs many servers
        comes after turns that hold some of them, and not after all that are given later.

        Once chosen, servers are given up only for others that have room no later than promised, or if they
        are late for long: for `patience_s`, and twice as long each time, for whoever flees from servers again
        and again, where the jobs run longer than declared, never sees any become idle.
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

    def state(self) -> list[Any]:
        """Everything, of types that msgpack writes."""
        return [[astuple(turn) for turn in self.all], self._latest_s]

    def restore(self, state: Sequence[Any]) -> None:
        """Take the state of another."""
        turns, self._latest_s = state
        self.all = [Turn(job_id, user, tuple(held), *rest) for job_id, user, held, *rest in turns]

    @property
    def _now_s(self) -> float:
        """Rounds follow ticks, so there is a time."""
        return self._workforce.time_s or 0.0

    def _is_next_due(self, patience_s: float) -> bool:
        """Whether no turn that there is should be over soon."""
        soon = (self._now_s <= turn.by_s <= self._now_s + patience_s for turn in self.all)
        return len(self.all) < MOST_TURNS and not any(soon)

    def _candidates(self, waiting: Sequence[ElasticJob], patience_s: float) -> Sequence[ElasticJob]:
        """The jobs that have waited for so long, of users who have no turn."""
        users, now_s = {turn.user for turn in self.all}, self._now_s
        overdue = [job for job in waiting if now_s - job.waits_since_s >= patience_s]
        return self._able([job for job in overdue if job.job.user not in users])

    def _claim_s(self, job: ElasticJob) -> float:
        """Since when a job waits and its user has had no turn.

        A user whose turn is over comes after all claims that are older than that. So before a job with a
        claim each other user has one turn at most, whatever jobs they submit, and users who submit later
        have none.
        """
        return max(job.waits_since_s, self._latest_s.get(job.job.user, job.waits_since_s))

    def _before(self, turn: Turn) -> Iterator[Turn]:
        """The turns that were given before one."""
        return takewhile(lambda each: each is not turn, self.all)

    def _reserved(self, turn: Turn) -> dict[str, list[tuple[float, float]]]:
        """By server that is held for earlier turns: when their jobs should start, and when they are expected
        to be over. A turn that is late counts as much longer as it is late."""
        reserved: dict[str, list[tuple[float, float]]] = {}
        for earlier in self._before(turn):
            start_s = self._now_s + abs(earlier.by_s - self._now_s)
            end_s = start_s + self._workforce.base_left_s(self._workforce.jobs[earlier.job_id])
            for server in earlier.held:
                reserved.setdefault(server, []).append((earlier.by_s, end_s))
        return reserved

    def _able(self, jobs: Sequence[ElasticJob]) -> list[ElasticJob]:
        """Those for which the open training servers have room at least if they are alone there."""
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
        """For each worker of a job that the open training servers could hold: when, and where.

        Args:
            reserved: see `_reserved`; the job is over before such a time, or begins after it.
        """
        own_s = self._workforce.base_left_s(job)
        for time_s, server_id in self._vacancies(job.workload.gpus_per_worker):
            for start_s, end_s in reserved.get(server_id, ()):
                if time_s + own_s > start_s:
                    time_s = max(time_s, end_s)
            yield time_s, server_id

    def _vacancies(self, gpus_per_worker: int) -> Iterator[tuple[float, str]]:
        """For each worker that the open training servers could hold: when, and where. Jobs there end as they
        do with their base demand, and flexible workers make way."""
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
