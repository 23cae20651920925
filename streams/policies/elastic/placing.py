"""Trial placement of the grants of a round on servers: grants without room go to other jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from solvers.elastic.cluster import placing_order
from solvers.elastic.cluster_parts import Kind
from solvers.elastic.demand import JobDemand, Pool, WorkerGrant
from solvers.elastic.making_room import MovableWorkers
from streams.policies.elastic.elastic_job import ElasticJob
from streams.policies.elastic.workforce import Workforce


@dataclass(slots=True)
class Change:
    """Part of a job's grant that is placed on servers."""

    job: ElasticJob
    grant: WorkerGrant
    held: int = 0
    """Workers that it keeps."""
    added: int = 0
    """New workers; 0 for a job that is to start and found no room."""

    @property
    def workers(self) -> int:
        """All its workers."""
        return self.held + self.added


class RoundPlacement:
    """One trial: jobs shrink, then others start, then others grow; each on the servers that fit best."""

    def __init__(self, workforce: Workforce, movable: Sequence[str], keeps_order: bool) -> None:
        """Begin a trial.

        Args:
            movable: the jobs whose flexible workers may be preempted.
            keeps_order: see `Scheme`.
        """
        self._keeps_order = keeps_order
        self._workforce = workforce
        self._cluster = workforce.cluster
        self._movable_jobs = movable
        self._movable: MovableWorkers | None = None
        """Set once a job needs the flexible workers of others; all jobs have shrunk by then."""
        self.misfits: set[tuple[Pool, int, int]] = set()
        """Base demands without room: pool, GPUs per worker and workers."""
        self.shrunk: list[Change] = []
        self.started: list[Change] = []
        self.grown: list[Change] = []

    @property
    def resized(self) -> set[str]:
        """Ids of running jobs whose workers change."""
        return {change.job.job.job_id for change in (*self.shrunk, *self.grown)}

    def place(self, grants: Sequence[WorkerGrant]) -> None:
        """Remove and place workers by all grants, as far as there is room."""
        jobs = self._workforce.jobs
        resized: dict[str, Change] = {}
        for grant in grants:
            job = jobs[grant.job_id]
            if job.members:
                resized[grant.job_id] = Change(job, grant, held=self._shrink(job, grant))
            else:
                self.started.append(Change(job, grant))
        self.started.sort(key=_arrival if self._keeps_order else _placing_order)
        for change in self.started:
            self._start(change, resized)
            if self._keeps_order and not change.workers:
                break
        for change in resized.values():
            (self.grown if change.grant.workers > change.held else self.shrunk).append(change)
        self.grown.sort(key=_placing_order)
        for change in self.grown:
            change.added = self._place_flexible(change)

    def _shrink(self, job: ElasticJob, grant: WorkerGrant) -> int:
        """Remove the flexible workers that a running job is not granted, and return the number left."""
        base = job.workload.min_workers
        held = job.workers - base
        kept = min(held, grant.workers - base) if grant.flexible_pool == job.flexible_pool else 0
        if kept < held:
            self._cluster.shrink(job.job.job_id, held - kept)
        return base + kept

    def _start(self, change: Change, resized: dict[str, Change]) -> None:
        job, grant = change.job, change.grant
        workers, gpus_per_worker = job.workload.min_workers, job.workload.gpus_per_worker
        shape = grant.pool, gpus_per_worker, workers
        if any(is_within(misfit, shape) for misfit in self.misfits):
            return
        kind: Kind = "base" if job.is_elastic else "inelastic"
        place = (grant.job_id, workers, gpus_per_worker, grant.pool, kind)
        if not self._place(*place):
            if self._movable is None:
                self._movable = MovableWorkers(self._cluster, self._movable_jobs)
            for job_id in self._movable.make_room(workers, gpus_per_worker, grant.pool):
                loser = self._workforce.jobs[job_id]
                if job_id not in resized:
                    # It gets them back if there is room elsewhere.
                    resized[job_id] = Change(loser, _present(loser))
                flexible = self._cluster.normalised_workers(job_id, "flexible")
                resized[job_id].held = loser.workload.min_workers + flexible
            if not self._place(*place):
                self.misfits.add(shape)
                return
        change.added = workers
        change.added += self._place_flexible(change)

    def _place_flexible(self, change: Change) -> int:
        """Place the rest of a grant, as far as there is room, and return its number of workers."""
        grant, gpus_per_worker = change.grant, change.job.workload.gpus_per_worker
        if grant.workers <= change.workers:
            return 0
        room = self._cluster.flexible_room(grant.job_id, gpus_per_worker, grant.flexible_pool)
        workers = min(grant.workers - change.workers, room)
        if workers > 0:
            self._place(grant.job_id, workers, gpus_per_worker, grant.flexible_pool, "flexible")
        return max(workers, 0)

    def _place(self, job_id: str, workers: int, gpus_per_worker: int, pool: Pool, kind: Kind) -> bool:
        """Place workers, and return whether there is room for all of them."""
        placed = self._cluster.place(job_id, workers, gpus_per_worker, pool, kind)
        if placed and self._movable is not None:
            self._movable.refresh(placed)
        return placed is not None


class ScatteredRoom:
    """Limits of the demands of one round by the room on single servers. A scheme counts only the GPUs of a
    pool; if it granted GPUs to a job that cannot use them, they would be idle in every round."""

    def __init__(self, workforce: Workforce, movable: Sequence[str]) -> None:
        self._cluster = workforce.cluster
        self._movable_jobs = movable
        self._barred: dict[str, set[Pool]] = {}
        """Pools without room for a job's base demand, by job."""
        self._room_workers: dict[str, int] = {}
        """Workers for which there is room, by job."""
        self._asked: dict[str, JobDemand] = {}
        """Demands with the two limits above, by job."""

    def bar_without_room(self, waiting: Sequence[JobDemand]) -> None:
        """Bar jobs from pools too small for them even when emptied of flexible workers."""
        vacated: dict[tuple[int, Pool], int] = {}
        rooms: dict[tuple[int, Pool], int] = {}
        for demand in waiting:
            size, workers = demand.gpus_per_worker, demand.min_workers
            for pool in demand.pools:
                if (size, pool) not in rooms:
                    rooms[size, pool] = self._cluster.room(size, pool)
                if rooms[size, pool] >= workers:
                    continue
                if (size, pool) not in vacated:
                    vacated[size, pool] = self._movable.room(size, pool)
                if vacated[size, pool] < workers:
                    self._bar(demand.job_id, pool)

    @cached_property
    def _movable(self) -> MovableWorkers:
        """Flexible workers before the first trial."""
        return MovableWorkers(self._cluster, self._movable_jobs)

    def note_misfits(self, placing: RoundPlacement, waiting: Sequence[JobDemand]) -> bool:
        """Limit each demand whose grant had no room in a trial. Return whether there were any."""
        has_misfits = False
        for change in (*placing.started, *placing.grown):
            workers = max(change.workers, change.job.workers)
            if 0 < workers < change.grant.workers:
                self._room_workers[change.grant.job_id] = workers
                self._asked.pop(change.grant.job_id, None)
                has_misfits = True
        if not placing.misfits:
            return has_misfits
        started = {change.grant.job_id for change in placing.started if change.workers}
        has_no_room: dict[tuple[Pool, int, int], bool] = {}
        for demand in waiting:
            if demand.job_id in started:
                continue
            for pool in demand.pools:
                shape = pool, demand.gpus_per_worker, demand.min_workers
                if shape not in has_no_room:
                    has_no_room[shape] = any(is_within(misfit, shape) for misfit in placing.misfits)
                if has_no_room[shape]:
                    self._bar(demand.job_id, pool)
                    has_misfits = True
        return has_misfits

    def limited(self, demands: Sequence[JobDemand]) -> list[JobDemand]:
        """Return the demands with their limits, for a scheme."""
        if not self._barred and not self._room_workers:
            return list(demands)
        asked = self._asked
        return [asked.get(demand.job_id) or self._limited(demand) for demand in demands]

    def _limited(self, demand: JobDemand) -> JobDemand:
        barred, workers = self._barred.get(demand.job_id), self._room_workers.get(demand.job_id)
        if barred is None and workers is None:
            return demand
        # This sets the last two fields; `_replace` takes three times as long.
        asked = self._asked[demand.job_id] = JobDemand(*demand[:-2], workers, frozenset(barred or ()))
        return asked

    def _bar(self, job_id: str, pool: Pool) -> None:
        """Bar a job from a pool."""
        barred = self._barred.setdefault(job_id, set())
        if pool not in barred:
            barred.add(pool)
            self._asked.pop(job_id, None)


def is_within(small: tuple[Pool, int, int], large: tuple[Pool, int, int]) -> bool:
    """Return whether a lack of room for one demand implies that for another."""
    return small[0] == large[0] and small[1] <= large[1] and small[2] <= large[2]


def _present(job: ElasticJob) -> WorkerGrant:
    """Return the present grant of a running job."""
    if job.pool is None or job.flexible_pool is None:
        raise AssertionError(f"job {job.job.job_id} has lost flexible workers, and had none")
    return WorkerGrant(job.job.job_id, job.workers, job.pool, job.flexible_pool)


def _arrival(change: Change) -> int:
    return change.job.arrival


def _placing_order(change: Change) -> tuple[int, int]:
    return placing_order(change.job.workload.gpus_per_worker, change.job.arrival)
