"""Jobs that have waited for too long come first, one at a time.

Shortest first (thesis, section 3.5.2) has no aging: whoever submits shorter jobs all the time keeps a longer
one waiting for ever, and smaller jobs fill the room that a wide one needs. The thesis leaves that open.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from solvers.elastic.demand import Pool
from solvers.elastic.making_way import MovableWorkers
from streams.policies.elastic.job import ElasticJob
from streams.policies.elastic.workforce import Workforce


@dataclass(frozen=True)
class Hold:
    """Servers on which only what is over in time is placed."""

    servers: tuple[str, ...]
    ready_s: float
    """In so many seconds they have room, if jobs end as they do with their base demand."""


class Turns:
    """Whose turn it is in one zone.

    A job that has waited for `patience_s` can be given the turn, and keeps it until it starts. It comes
    before all others then. Where there is no room for it, the servers that will have room first are held;
    jobs that end before that may use them (EASY backfilling, Lifka 1995).
    """

    def __init__(self, workforce: Workforce) -> None:
        self._workforce = workforce
        self._latest: dict[str, int] = {}
        """The number of the latest turn of each user who has jobs."""
        self._given = 0
        self.job_id: str | None = None
        """Who has the turn."""
        self.held: tuple[str, ...] = ()
        """Servers that were held for it in the last round."""

    def is_due(self, patience_s: float) -> bool:
        """Whether a job could be given the turn that nobody has."""
        return self.job_id is None and bool(self._able(self._workforce.waiting, patience_s))

    def give(self, waiting: Sequence[ElasticJob], patience_s: float) -> ElasticJob | None:
        """Who has the turn in this round: who had it before, or else a job of the user whose latest turn was
        longest ago, so that one user's many jobs do not keep others waiting; ties go by arrival.

        Passed over are jobs that could not start now even if they were alone on the open servers.
        """
        self.held = ()
        able = self._able(waiting, patience_s)
        holder = next((job for job in able if job.job.job_id == self.job_id), None)
        if holder is None and able:
            holder = min(able, key=lambda job: (self._latest.get(job.job.user, 0), job.arrival))
            users = {job.job.user for job in self._workforce.jobs.values()}
            self._given += 1
            self._latest = {user: turn for user, turn in self._latest.items() if user in users}
            self._latest[holder.job.user] = self._given
        self.job_id = None if holder is None else holder.job.job_id
        return holder

    def end(self) -> None:
        """Who has the turn starts."""
        self.job_id = None

    def hold(self, holder: ElasticJob, movable: MovableWorkers, pools: Sequence[Pool]) -> Hold | None:
        """What is held for the job that has the turn; nothing where it can start."""
        size, wanted = holder.workload.gpus_per_worker, holder.workload.min_workers
        if any(movable.room(size, pool) >= wanted for pool in pools):
            return None
        places = sorted(self._places(size))[:wanted]
        self.held = tuple(dict.fromkeys(server for _, server in places))
        return Hold(self.held, places[-1][0])

    def _able(self, waiting: Sequence[ElasticJob], patience_s: float) -> list[ElasticJob]:
        """Those that have waited for so long, and for which the open training servers have room at least if
        they are alone there."""
        now_s, cluster = self._workforce.time_s, self._workforce.cluster
        if now_s is None:
            return []
        overdue = [job for job in waiting if now_s - job.waits_since_s >= patience_s]
        servers = map(cluster.server, cluster.servers("training"))
        gpus = [server.gpus for server in servers if server.is_open]
        sizes = {job.workload.gpus_per_worker for job in overdue}
        rooms = {size: sum(each // size for each in gpus) for size in sizes}
        return [job for job in overdue if rooms[job.workload.gpus_per_worker] >= job.workload.min_workers]

    def state(self) -> list[Any]:
        """Everything, of types that msgpack writes."""
        return [self.job_id, list(self.held), self._latest, self._given]

    def restore(self, state: Sequence[Any]) -> None:
        """Take the state of another."""
        self.job_id, held, self._latest, self._given = state
        self.held = tuple(held)

    def _places(self, gpus_per_worker: int) -> list[tuple[float, str]]:
        """For each worker that the open training servers could hold: in how many seconds, and where. Jobs
        there end as they do with their base demand, and flexible workers make way."""
        cluster, jobs = self._workforce.cluster, self._workforce.jobs
        places: list[tuple[float, str]] = []
        for server_id in cluster.servers("training"):
            server = cluster.server(server_id)
            if not server.is_open:
                continue
            ends: list[tuple[float, int]] = []
            for job_id in server.jobs:
                job = jobs[job_id]
                end_s = self._workforce.base_left_s(job)
                firm = sum(
                    part.workers.get(server_id, 0) * part.gpus_per_worker
                    for kind, part in cluster.parts_of(job_id).items()
                    if kind != "flexible"
                )
                ends.append((end_s, firm))
            free = server.gpus - sum(firm for _, firm in ends)
            places += [(0.0, server_id)] * (free // gpus_per_worker)
            for end_s, firm in sorted(ends):
                more = (free + firm) // gpus_per_worker - free // gpus_per_worker
                places += [(end_s, server_id)] * more
                free += firm
        return places
