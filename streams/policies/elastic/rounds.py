"""One round of allocation: the demands of jobs for a scheme, and the application of its grants."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import nsmallest
from operator import attrgetter

from schemas.elastic.settings import ElasticPolicy
from schemas.elastic.workload import MAX_WORKERS, ElasticWorkload
from schemas.facts import NO_FACTS, Fact, Facts
from solvers.elastic.cluster import Cluster
from solvers.elastic.demand import POOLS, JobDemand, Pool, Scheme, WorkerGrant
from streams.policies.elastic.elastic_job import ElasticJob
from streams.policies.elastic.placing import RoundPlacement, ScatteredRoom
from streams.policies.elastic.profiles import KnownSteps
from streams.policies.elastic.sizes import ServerSizes
from streams.policies.elastic.turns import QueueTurns, Turn
from streams.policies.elastic.workforce import Workforce
from streams.policies.gang.gangs import Why

_SPANNING_SPEED = {"basic": 1.0, "advanced": 0.7, "heterogeneous": 0.7, "ideal": 1.0}
"""Factor on a job's speed on several GPU types at a time, by scenario (thesis, section 3.7.1)."""

MOST_TRIALS = 4
"""Most trials of a round. After each, base demands as large as one without room are left out, so two trials
usually suffice."""


_MOST_REFUTED, _MOST_RIVALS = 16, 16
"""Most jobs that may give way in a round, and most jobs that may start in place of each, besides those with a
turn."""

MOST_LOOKED_AT = 3_000
"""Most waiting jobs in a round, besides those with a turn. The others wait for a later round."""


class Rounds:
    """Rounds of one zone. A round depends only on the present jobs and servers."""

    def __init__(
        self,
        policy: ElasticPolicy,
        scheme: Scheme,
        workforce: Workforce,
        turns: QueueTurns,
        sizes: ServerSizes,
    ) -> None:
        self._policy = policy
        self._turns = turns
        self._sizes = sizes
        self._scheme = scheme
        self._workforce = workforce
        self._waiting: dict[str, tuple[tuple[int, int, KnownSteps | None], JobDemand]] = {}
        """Generation, samples done, known steps and demand of each job that waited in the last round. A
        cache: while a job waits, its demand changes only with these."""
        workforce.spanning_speed = 1.0 if sizes.has_one_speed else _SPANNING_SPEED[policy.scenario]

    @property
    def patience_s(self) -> float:
        """Time in the queue after which a job can be given a turn; infinite under schemes without turns."""
        return self._policy.patience_s if self._scheme.gives_turns else math.inf

    @property
    def has_turns_due(self) -> bool:
        """Whether a round is due because of time alone."""
        return self._turns.are_due(self.patience_s)

    def allocate(self) -> None:
        """Decide the numbers of workers of jobs, and place them: first jobs with a turn, then all others,
        then those that can use held servers."""
        workforce, cluster, turns = self._workforce, self._workforce.cluster, self._turns
        waiting = workforce.waiting
        turns.renew(waiting if self._scheme.gives_turns else ())
        turns.give_turn(waiting, self.patience_s)
        self._preempt_for_rivals()
        resizable = workforce.resizable
        for turn in list(turns.all):
            served = self._serve(turn, resizable)
            if served is not None:
                self._apply(served, {"case": "waited_too_long"})
                # No job is resized twice in a round.
                resizable = [job for job in resizable if job.job.job_id not in served.resized]
        held = turns.held
        with _closed(cluster, held):
            placing = self._decide(self._first(self._without_turn(waiting)), resizable)
        self._apply(placing)
        for by_s in sorted(set(held.values())):
            with _closed(cluster, [server for server in cluster.servers() if held.get(server) != by_s]):
                fitting = self._fitting(self._without_turn(waiting))
                placing = self._decide([job for job in fitting if turns.is_over_by(job, by_s)], [])
            self._apply(placing)

    def _preempt_for_rivals(self) -> None:
        """Return jobs to the queue that do not reach the speed assumed at their start. This needs another job
        that can start only in their place: a shorter job of measured speed, or a job with a turn."""
        workforce = self._workforce
        refuted = [job for job in workforce.jobs.values() if job.gives_way]
        if not (refuted and self._scheme.gives_turns):
            return
        rivals = self._rivals()
        for job in refuted[:_MOST_REFUTED]:
            running_s = workforce.work_left_s(job) / job.speedup[job.workload.max_workers]
            for rival in rivals:
                is_first = self._turns.has(rival.job_id) or workforce.entry(rival).shortest_s < running_s
                if is_first and not self._has_room(rival) and self._has_room(rival, job.job_id):
                    facts: Facts = {"job_id": rival.job_id, "samples_per_s": job.samples_per_s}
                    workforce.return_to_queue(job, Why("gave_way", facts))
                    break

    def _rivals(self) -> list[ElasticJob]:
        """Return the waiting jobs with a turn, and the shortest ones of measured speed: no job gives way to
        a mere claim."""
        waiting = self._workforce.waiting
        with_turn = [job for job in waiting if self._turns.has(job.job_id)]
        measured = (self._workforce.entry(job) for job in waiting if job.is_known_by_runs)
        return with_turn + [
            entry.job for entry in nsmallest(_MOST_RIVALS, measured, key=attrgetter("shortest_s"))
        ]

    def _has_room(self, job: ElasticJob, without: str | None = None) -> bool:
        """Return whether the base demand of a waiting job can be placed on the servers that are open to it,
        in place of flexible workers if needed.

        Args:
            without: a running job that is to leave first.
        """
        workforce, cluster, turns = self._workforce, self._workforce.cluster, self._turns
        turn = next((turn for turn in turns.all if turn.job_id == job.job_id), None)
        movable = [each for each in _movable(workforce.resizable) if each != without]
        with _closed(cluster, turns.held if turn is None else turns.barred(turn)):
            for pool in self._pools_of(job, self._is_heterogeneous(job)):
                cluster.begin_trial()
                if without is not None:
                    cluster.remove(without)
                placing = RoundPlacement(workforce, movable, keeps_order=False)
                placing.place([WorkerGrant(job.job_id, job.workload.min_workers, pool, pool)])
                cluster.end_trial(is_kept=False)
                if not placing.misfits:
                    return True
        return False

    def _without_turn(self, waiting: Sequence[ElasticJob]) -> list[ElasticJob]:
        """Return the jobs without a turn that still wait."""
        with_turn = {turn.job_id for turn in self._turns.all}
        return [job for job in waiting if not job.members and job.job.job_id not in with_turn]

    def _first(self, jobs: list[ElasticJob]) -> list[ElasticJob]:
        """Return at most `MOST_LOOKED_AT` jobs, in their order: the oldest and the shortest."""
        if len(jobs) <= MOST_LOOKED_AT:
            return jobs
        oldest = MOST_LOOKED_AT // 4
        later = sorted(map(self._workforce.entry, jobs[oldest:]), key=attrgetter("shortest_s"))
        shortest = [entry.job for entry in later[: MOST_LOOKED_AT - oldest]]
        return jobs[:oldest] + sorted(shortest, key=attrgetter("arrival"))

    def _fitting(self, jobs: Sequence[ElasticJob]) -> list[ElasticJob]:
        """Return the jobs for which the open servers may have room without preemptions. Held servers rarely
        have room, so this excludes most jobs early."""
        cluster = self._workforce.cluster
        sizes = {job.workload.gpus_per_worker for job in jobs}
        rooms = {size: max(cluster.room(size, pool) for pool in POOLS) for size in sizes}
        return [job for job in jobs if rooms[job.workload.gpus_per_worker] >= job.workload.min_workers]

    def _serve(self, turn: Turn, resizable: Sequence[ElasticJob]) -> RoundPlacement | None:
        """Place the base demand of a job with a turn, in place of flexible workers if needed; or hold servers
        for it, and return None."""
        workforce, cluster = self._workforce, self._workforce.cluster
        job = workforce.jobs[turn.job_id]
        with _closed(cluster, self._turns.barred(turn)):
            for pool in self._pools_of(job, self._is_heterogeneous(job)):
                cluster.begin_trial()
                placing = RoundPlacement(workforce, _movable(resizable), keeps_order=False)
                placing.place([WorkerGrant(turn.job_id, job.workload.min_workers, pool, pool)])
                has_room = not placing.misfits
                cluster.end_trial(has_room)
                if has_room:
                    self._turns.end(turn)
                    return placing
        self._turns.hold(turn, self.patience_s)
        return None

    def _decide(self, jobs: Sequence[ElasticJob], resizable: Sequence[ElasticJob]) -> RoundPlacement:
        """Return the placement of waiting and running jobs on the open servers.

        Schemes count the GPUs of a pool, which may be scattered over its servers. So grants are placed on
        trial; if some have no room, the scheme allocates again without them.
        """
        workforce, cluster = self._workforce, self._workforce.cluster
        waiting = self._demands(jobs)
        running = [self._demand(job) for job in resizable]
        movable = _movable(resizable)
        free_gpus = self._free_gpus(cluster)
        room = ScatteredRoom(workforce, movable)
        room.bar_without_room(waiting)
        for trial in range(MOST_TRIALS):
            placing = RoundPlacement(workforce, movable, self._scheme.keeps_order)
            grants = self._scheme.allocate(room.limited(waiting), room.limited(running), free_gpus, trial)
            cluster.begin_trial()
            placing.place(grants)
            is_kept = trial == MOST_TRIALS - 1 or not room.note_misfits(placing, waiting)
            cluster.end_trial(is_kept)
            if is_kept:
                break
        return placing

    def _apply(self, placing: RoundPlacement, facts: Mapping[str, Fact] = NO_FACTS) -> None:
        """Start and resize jobs by their placement.

        Args:
            facts: facts of the starts.
        """
        workforce = self._workforce
        started = [change for change in placing.started if change.workers]
        loss_facts: Facts = {"case": "jobs_gain_more"}
        if started:
            loss_facts = {"case": "jobs_waited", "jobs": len(started)}
        for change in placing.shrunk:
            workforce.resize(change.job, change.held, 0, change.grant, loss_facts)
        for change in started:
            workforce.start(change.job, change.workers, change.grant, facts)
        for change in placing.grown:
            workforce.resize(change.job, change.held, change.added, change.grant, loss_facts)

    def _demands(self, jobs: Sequence[ElasticJob]) -> list[JobDemand]:
        """Return the demands of waiting jobs for a scheme."""
        kept = self._waiting
        demands = {}
        for job in jobs:
            job_id, state = job.job.job_id, (job.generation, job.job.samples_done, job.known)
            before = kept.get(job_id)
            is_same = before is not None and before[0] == state
            demands[job_id] = before if before is not None and is_same else (state, self._demand(job))
        if len(demands) * 2 > len(kept):
            self._waiting = demands
        return [demand for _, demand in demands.values()]

    def _demand(self, job: ElasticJob) -> JobDemand:
        """Return the demand of a job for a scheme."""
        workload = job.workload
        is_heterogeneous = self._is_heterogeneous(job)
        # A job without a known speed is first measured on its base demand.
        most_workers = workload.min_workers if job.is_assumed else workload.max_workers
        return JobDemand(
            job_id=job.job.job_id,
            arrival=job.arrival,
            min_workers=workload.min_workers,
            max_workers=most_workers,
            gpus_per_worker=workload.gpus_per_worker,
            remaining_work_s=self._workforce.work_left_s(job),
            speedup=job.speedup[: most_workers + 1],
            pools=self._pools_of(job, is_heterogeneous),
            # On equally fast servers, both pools are like one.
            spans_pools=is_heterogeneous or (self._sizes.has_one_speed and job.is_elastic),
            comes_last=is_heterogeneous,
            spanning_speed=self._workforce.spanning_speed_of(job),
            workers=job.workers,
            flexible_pool=job.flexible_pool,
        )

    def _is_heterogeneous(self, job: ElasticJob) -> bool:
        """Return whether a job is to use several GPU types at a time."""
        is_able = job.workload.heterogeneous and job.is_elastic
        return is_able and self._policy.scenario != "basic" and not self._sizes.has_one_speed

    def _pools_of(self, job: ElasticJob, is_heterogeneous: bool) -> tuple[Pool, ...]:
        if job.pool is not None:
            return (job.pool,)
        if "loaned" not in self.usable_pools(job.workload):
            return ("training",)
        prefers_loans = job.is_elastic and self._policy.groups_elastic_jobs and not is_heterogeneous
        return ("loaned", "training") if prefers_loans and self._risks_little(job) else ("training", "loaned")

    def usable_pools(self, workload: ElasticWorkload) -> tuple[Pool, ...]:
        """Return the pools in which the base demand of a waiting job may be placed."""
        scenario = self._policy.scenario
        any_type = (workload.fungible and scenario != "heterogeneous") or (
            workload.heterogeneous and scenario != "basic"
        )
        # On slower servers, the base demand may exceed the most workers of a job.
        fits = workload.min_workers * self._sizes.least_per_loaned_worker <= MAX_WORKERS
        return POOLS if fits and (any_type or self._sizes.has_one_speed) else ("training",)

    def _risks_little(self, job: ElasticJob) -> bool:
        """Return whether a preemption would cost a job little work, see `most_work_at_risk_s`."""
        if job.workload.keeps_checkpoints:
            return True
        return self._workforce.entry(job).shortest_s <= self._policy.most_work_at_risk_s

    @staticmethod
    def _free_gpus(cluster: Cluster) -> dict[Pool, float]:
        return {"training": cluster.free_gpus("training"), "loaned": cluster.free_gpus("loaned")}


def _movable(resizable: Sequence[ElasticJob]) -> list[str]:
    """Return the jobs whose flexible workers may be preempted."""
    return [job.job.job_id for job in resizable if job.flexible_pool is not None]


@contextmanager
def _closed(cluster: Cluster, servers: Collection[str]) -> Iterator[None]:
    """Close servers within the block."""
    closed = [server for server in servers if cluster.server(server).is_open]
    for server in closed:
        cluster.close(server)
    try:
        yield
    finally:
        for server in closed:
            cluster.open(server)
