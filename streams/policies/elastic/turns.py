"""Jobs that have waited for too long come first, one at a time.

Shortest first (thesis, section 3.5.2) has no aging: whoever submits shorter jobs all the time keeps a longer
one waiting for ever, and smaller jobs fill the room that a wide one needs. The thesis leaves that open.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

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
        self.job_id: str | None = None
        """Who has the turn."""
        self.held: tuple[str, ...] = ()
        """Servers that were held for it in the last round."""

    def is_due(self, patience_s: float) -> bool:
        """Whether a job could be given the turn that nobody has."""
        return self.job_id is None and bool(self._overdue(self._workforce.waiting, patience_s))

    def give(self, waiting: Sequence[ElasticJob], patience_s: float) -> ElasticJob | None:
        """Who has the turn in this round. A new one is the job of the user with the fewest GPUs at work, so
        that one user's many jobs do not keep others waiting; ties go by arrival."""
        self.held = ()
        holder = next((job for job in waiting if job.job.job_id == self.job_id), None)
        if holder is None and (overdue := self._overdue(waiting, patience_s)):
            at_work: Counter[str] = Counter()
            for job in self._workforce.jobs.values():
                at_work[job.job.user] += job.workers * job.workload.gpus_per_worker
            holder = min(overdue, key=lambda job: (at_work[job.job.user], job.arrival))
        self.job_id = None if holder is None else holder.job.job_id
        return holder

    def end(self) -> None:
        """Who has the turn starts."""
        self.job_id = None

    def hold(self, holder: ElasticJob, movable: MovableWorkers, pools: Sequence[Pool]) -> Hold | None:
        """What is held for the job that has the turn: nothing where it can start, or could not even if it
        were alone on the servers that are open now."""
        size, wanted = holder.workload.gpus_per_worker, holder.workload.min_workers
        places = sorted(self._places(size))[:wanted]
        if len(places) < wanted or any(movable.room(size, pool) >= wanted for pool in pools):
            return None
        self.held = tuple(dict.fromkeys(server for _, server in places))
        return Hold(self.held, places[-1][0])

    def _overdue(self, waiting: Sequence[ElasticJob], patience_s: float) -> list[ElasticJob]:
        now_s = self._workforce.time_s
        if now_s is None:
            return []
        return [job for job in waiting if now_s - job.waits_since_s >= patience_s]

    def _places(self, gpus_per_worker: int) -> list[tuple[float, str]]:
        """For each worker that the open training servers could hold: in how many seconds, and where. Jobs
        there end as they do with their base demand, and flexible workers make way."""
        cluster, jobs = self._workforce.cluster, self._workforce.jobs
        places: list[tuple[float, str]] = []
        for server in cluster.servers("training"):
            if not cluster.is_open(server):
                continue
            ends: list[tuple[float, int]] = []
            for job_id in cluster.jobs_of(server):
                job = jobs[job_id]
                end_s = self._workforce.work_left_s(job) / job.speedup[job.workload.min_workers]
                firm = sum(
                    part.workers.get(server, 0) * part.gpus_per_worker
                    for kind, part in cluster.parts_of(job_id).items()
                    if kind != "flexible"
                )
                ends.append((end_s, firm))
            free = cluster.gpus_of(server) - sum(firm for _, firm in ends)
            places += [(0.0, server)] * (free // gpus_per_worker)
            for end_s, firm in sorted(ends):
                more = (free + firm) // gpus_per_worker - free // gpus_per_worker
                places += [(end_s, server)] * more
                free += firm
        return places
