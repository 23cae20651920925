"""Jobs that have waited for too long come first, in turn.

Shortest first (thesis, section 3.5.2) has no aging: whoever submits shorter jobs all the time keeps a longer
one waiting for ever, and smaller jobs fill the room that a wide one needs. The thesis leaves that open.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple, dataclass
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
    """

    def __init__(self, workforce: Workforce) -> None:
        self._workforce = workforce
        self._latest: dict[str, int] = {}
        """The number of the latest turn of each user who has jobs."""
        self._given = 0
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
        now_s = self._workforce.time_s
        if now_s is None:
            return False
        if any(now_s >= turn.review_s for turn in self.all):
            return True
        return self._is_next_due(now_s, patience_s) and bool(
            self._candidates(self._workforce.waiting, now_s, patience_s)
        )

    def renew(self, waiting: Sequence[ElasticJob]) -> None:
        """End the turns of jobs that wait no more, or that could not start at present even alone."""
        able = {job.job.job_id for job in self._able([job for job in waiting if self.has(job.job.job_id)])}
        self.all = [turn for turn in self.all if turn.job_id in able]

    def give(self, waiting: Sequence[ElasticJob], patience_s: float) -> None:
        """Give another turn, if it is time for one: to a job of the user whose latest turn was longest ago,
        so that one user's many jobs do not keep others waiting; ties go by arrival.

        Passed over are jobs that could not start now even if they were alone on the open servers.
        """
        now_s = self._workforce.time_s
        if now_s is None or not self._is_next_due(now_s, patience_s):
            return
        candidates = self._candidates(waiting, now_s, patience_s)
        if not candidates:
            return
        job = min(candidates, key=lambda job: (self._latest.get(job.job.user, 0), job.arrival))
        users = {each.job.user for each in self._workforce.jobs.values()}
        self._given += 1
        self._latest = {user: number for user, number in self._latest.items() if user in users}
        self._latest[job.job.user] = self._given
        self.all.append(Turn(job.job.job_id, job.job.user))

    def end(self, turn: Turn) -> None:
        """Its job starts, or no servers can be held for it."""
        self.all.remove(turn)

    def forget(self, servers: Collection[str]) -> None:
        """Servers leave the zone, or return to it as others."""
        for turn in self.all:
            turn.held = tuple(server for server in turn.held if server not in servers)

    def barred(self, turn: Turn) -> list[str]:
        """Servers that are held for earlier turns, and on which its job would not be over in time."""
        job, barred = self._workforce.jobs[turn.job_id], dict[str, None]()
        for earlier in self.all:
            if earlier is turn:
                break
            if not self.is_over_by(job, earlier.by_s):
                barred.update(dict.fromkeys(earlier.held))
        return list(barred)

    def is_over_by(self, job: ElasticJob, time_s: float) -> bool:
        """Whether a job that starts now is over by then with its base demand."""
        now_s = self._workforce.time_s
        return now_s is not None and now_s + self._workforce.base_left_s(job) <= time_s

    def hold(self, turn: Turn, patience_s: float) -> bool:
        """Hold open servers for a job that has no room: those that will have room first. Whether there are
        enough.

        Once chosen, servers are given up only for others that have room no later than promised, or if they
        are late for long: for `patience_s`, and twice as long each time, for whoever flees from servers again
        and again, where the jobs run longer than declared, never sees any become idle.
        """
        job, now_s = self._workforce.jobs[turn.job_id], self._workforce.time_s
        if now_s is None:
            return False
        places = sorted(self._places(job.workload.gpus_per_worker))[: job.workload.min_workers]
        if len(places) < job.workload.min_workers:
            return False
        servers = tuple(dict.fromkeys(server for _, server in places))
        by_s, cluster = now_s + places[-1][0], self._workforce.cluster
        is_kept = bool(turn.held) and all(cluster.server(server).is_open for server in turn.held)
        if is_kept and by_s > turn.by_s and now_s < turn.review_s:
            return True
        if is_kept and now_s >= turn.review_s:
            turn.reviews += 1
        turn.held, turn.by_s = servers, by_s
        turn.review_s = by_s + patience_s * 2**turn.reviews
        return True

    def state(self) -> list[Any]:
        """Everything, of types that msgpack writes."""
        return [[astuple(turn) for turn in self.all], self._latest, self._given]

    def restore(self, state: Sequence[Any]) -> None:
        """Take the state of another."""
        turns, self._latest, self._given = state
        self.all = [Turn(job_id, user, tuple(held), *rest) for job_id, user, held, *rest in turns]

    def _is_next_due(self, now_s: float, patience_s: float) -> bool:
        """Whether no turn that there is should be over soon."""
        soon = (now_s <= turn.by_s <= now_s + patience_s for turn in self.all)
        return len(self.all) < MOST_TURNS and not any(soon)

    def _candidates(
        self, waiting: Sequence[ElasticJob], now_s: float, patience_s: float
    ) -> Sequence[ElasticJob]:
        """The jobs that have waited for so long, of users who have no turn."""
        users = {turn.user for turn in self.all}
        return self._able(
            [job for job in waiting if now_s - job.waits_since_s >= patience_s and job.job.user not in users]
        )

    def _able(self, jobs: Sequence[ElasticJob]) -> list[ElasticJob]:
        """Those for which the open training servers have room at least if they are alone there."""
        if not jobs:
            return []
        cluster = self._workforce.cluster
        gpus = [server.gpus for server in map(cluster.server, cluster.servers("training")) if server.is_open]
        sizes = {job.workload.gpus_per_worker for job in jobs}
        rooms = {size: sum(each // size for each in gpus) for size in sizes}
        return [job for job in jobs if rooms[job.workload.gpus_per_worker] >= job.workload.min_workers]

    def _places(self, gpus_per_worker: int) -> Iterator[tuple[float, str]]:
        """For each worker that the open training servers could hold: in how many seconds, and where. Jobs
        there end as they do with their base demand, and flexible workers make way."""
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
                ends.append((self._workforce.base_left_s(jobs[job_id]), firm))
            free = server.gpus - sum(firm for _, firm in ends)
            yield from [(0.0, server_id)] * (free // gpus_per_worker)
            for end_s, firm in sorted(ends):
                more = (free + firm) // gpus_per_worker - free // gpus_per_worker
                yield from [(end_s, server_id)] * more
                free += firm
