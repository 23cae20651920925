"""One round of allocation: what a scheme is asked about the jobs, and how its grants are carried out."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter

from schemas.elastic.settings import ElasticPolicy
from schemas.elastic.workload import MAX_WORKERS, ElasticWorkload
from schemas.facts import NO_FACTS, Fact, Facts
from solvers.elastic.allocation import POOLS
from solvers.elastic.cluster import Cluster
from solvers.elastic.demand import Demand, Grant, Pool, Scheme
from streams.policies.elastic.job import ElasticJob
from streams.policies.elastic.placing import Placing, ScatteredRoom
from streams.policies.elastic.sizes import Sizes
from streams.policies.elastic.turns import Turn, Turns
from streams.policies.elastic.workforce import Workforce

_SPANNING_SPEED = {"basic": 1.0, "advanced": 0.7, "heterogeneous": 0.7, "ideal": 1.0}
"""Part of a job's speed that is left on several GPU types at a time, by scenario (thesis, section 3.7.1)."""

MOST_TRIALS = 4
"""Trials of a round. With each, all base demands as large as one that found no room are left out, so that it
rarely takes more than two."""


MOST_LOOKED_AT = 3_000
"""Waiting jobs in a round, beside those with a turn. The others wait for a later round."""


class Rounds:
    """Rounds of one zone. A round begins with what the jobs and servers are now, and keeps nothing for the
    next."""

    def __init__(
        self, policy: ElasticPolicy, scheme: Scheme, workforce: Workforce, turns: Turns, sizes: Sizes
    ) -> None:
        self._policy = policy
        self._turns = turns
        self._sizes = sizes
        self._scheme = scheme
        self._workforce = workforce
        self._waiting: dict[str, tuple[int, Demand]] = {}
        """Demand passed to a scheme for each job that waited in the last round, by its samples done:
        nothing else that changes while a job waits is in there."""
        workforce.spanning_speed = 1.0 if sizes.has_one_speed else _SPANNING_SPEED[policy.scenario]

    @property
    def patience_s(self) -> float:
        """After so long in the queue a job can be given a turn; never under schemes that give none."""
        return self._policy.patience_s if self._scheme.gives_turns else math.inf

    @property
    def has_turns_due(self) -> bool:
        """Whether time alone is a reason for a round."""
        return self._turns.are_due(self.patience_s)

    def allocate(self) -> None:
        """Decide who has how many workers, and place them: jobs that have a turn, then all others, then those
        that can use servers that are held."""
        workforce, cluster, turns = self._workforce, self._workforce.cluster, self._turns
        waiting, resizable = workforce.waiting, workforce.resizable
        turns.renew(waiting if self._scheme.gives_turns else ())
        turns.give(waiting, self.patience_s)
        for turn in list(turns.all):
            served = self._serve(turn, resizable)
            if served is not None:
                self._carry_out(served, {"case": "waited_too_long"})
                # None is resized twice in a round.
                resizable = [job for job in resizable if job.job.job_id not in served.resized]
        held = turns.held
        with _closed(cluster, held):
            placing = self._decide(self._first(self._without_turn(waiting)), resizable)
        self._carry_out(placing)
        for by_s in sorted(set(held.values())):
            with _closed(cluster, [server for server in cluster.servers() if held.get(server) != by_s]):
                fitting = self._fitting(self._without_turn(waiting))
                placing = self._decide([job for job in fitting if turns.is_over_by(job, by_s)], [])
            self._carry_out(placing)

    def _without_turn(self, waiting: Sequence[ElasticJob]) -> list[ElasticJob]:
        """Those of jobs that waited when the round began that still do, for what jobs with turns leave."""
        with_turn = {turn.job_id for turn in self._turns.all}
        return [job for job in waiting if not job.members and job.job.job_id not in with_turn]

    def _first(self, jobs: list[ElasticJob]) -> list[ElasticJob]:
        """As many jobs as a round looks at, in their order: the shortest, and those that came first."""
        if len(jobs) <= MOST_LOOKED_AT:
            return jobs
        oldest = MOST_LOOKED_AT // 4
        later = sorted(map(self._workforce.entry, jobs[oldest:]), key=attrgetter("shortest_s"))
        shortest = [entry.job for entry in later[: MOST_LOOKED_AT - oldest]]
        return jobs[:oldest] + sorted(shortest, key=attrgetter("arrival"))

    def _fitting(self, jobs: Sequence[ElasticJob]) -> list[ElasticJob]:
        """Those for which there might be room on the open servers, though none make way. Mostly few servers
        that are held have any, so that most jobs need not be looked at further."""
        cluster = self._workforce.cluster
        sizes = {job.workload.gpus_per_worker for job in jobs}
        rooms = {size: max(cluster.room(size, pool) for pool in POOLS) for size in sizes}
        return [job for job in jobs if rooms[job.workload.gpus_per_worker] >= job.workload.min_workers]

    def _serve(self, turn: Turn, resizable: Sequence[ElasticJob]) -> Placing | None:
        """Place the base demand of a job that has a turn, where flexible workers make way for it; or hold
        servers for it."""
        workforce, cluster = self._workforce, self._workforce.cluster
        job = workforce.jobs[turn.job_id]
        with _closed(cluster, self._turns.barred(turn)):
            for pool in self._pools_of(job, self._is_heterogeneous(job)):
                cluster.begin_trial()
                placing = Placing(workforce, _movable(resizable), keeps_order=False)
                placing.place([Grant(turn.job_id, job.workload.min_workers, pool, pool)])
                has_room = not placing.misfits
                cluster.end_trial(has_room)
                if has_room:
                    self._turns.end(turn)
                    return placing
        self._turns.hold(turn, self.patience_s)
        return None

    def _decide(self, jobs: Sequence[ElasticJob], resizable: Sequence[ElasticJob]) -> Placing:
        """Return the placement of waiting and running jobs on the open servers.

        Schemes count the GPUs of a pool, and these may be scattered over its servers. So grants are placed on
        trial, and where some find no room, the scheme is asked again without them.
        """
        workforce, cluster = self._workforce, self._workforce.cluster
        waiting = self._demands(jobs)
        running = [self._demand(job) for job in resizable]
        movable = _movable(resizable)
        free_gpus = self._free_gpus(cluster)
        room = ScatteredRoom(workforce, movable)
        room.judge(waiting)
        for trial in range(MOST_TRIALS):
            placing = Placing(workforce, movable, self._scheme.keeps_order)
            grants = self._scheme.allocate(room.told(waiting), room.told(running), free_gpus, trial)
            cluster.begin_trial()
            placing.place(grants)
            is_kept = trial == MOST_TRIALS - 1 or not room.learn(placing, waiting)
            cluster.end_trial(is_kept)
            if is_kept:
                break
        return placing

    def _carry_out(self, placing: Placing, facts: Mapping[str, Fact] = NO_FACTS) -> None:
        """Start and resize jobs as they are placed.

        Args:
            facts: why those start that do.
        """
        workforce = self._workforce
        started = [change for change in placing.started if change.workers]
        made_way: Facts = {"case": "jobs_gain_more"}
        if started:
            made_way = {"case": "jobs_waited", "jobs": len(started)}
        for change in placing.shrunk:
            workforce.regroup(change.job, change.held, 0, change.grant, made_way)
        for change in started:
            workforce.start(change.job, change.workers, change.grant, facts)
        for change in placing.grown:
            workforce.regroup(change.job, change.held, change.added, change.grant, made_way)

    def _demands(self, jobs: Sequence[ElasticJob]) -> list[Demand]:
        """Return the demands passed to a scheme for jobs that wait."""
        kept = self._waiting
        told = {}
        for job in jobs:
            job_id, samples_done = job.job.job_id, job.job.samples_done
            before = kept.get(job_id)
            is_same = before is not None and before[0] == samples_done
            told[job_id] = before if before is not None and is_same else (samples_done, self._demand(job))
        if len(told) * 2 > len(kept):
            self._waiting = told
        return [demand for _, demand in told.values()]

    def _demand(self, job: ElasticJob) -> Demand:
        """Return the demand of a job for a scheme."""
        workload = job.workload
        is_heterogeneous = self._is_heterogeneous(job)
        return Demand(
            job_id=job.job.job_id,
            arrival=job.arrival,
            min_workers=workload.min_workers,
            max_workers=workload.max_workers,
            gpus_per_worker=workload.gpus_per_worker,
            remaining_work_s=self._workforce.work_left_s(job),
            speedup=job.speedup,
            pools=self._pools_of(job, is_heterogeneous),
            # On servers that are equally fast, workers of both pools are like those of one.
            spans_pools=is_heterogeneous or (self._sizes.has_one_speed and job.is_elastic),
            comes_last=is_heterogeneous,
            spanning_speed=self._workforce.spanning_speed,
            workers=job.workers,
            flexible_pool=job.flexible_pool,
        )

    def _is_heterogeneous(self, job: ElasticJob) -> bool:
        """Whether it is to be on several GPU types at a time."""
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
        """Where the base demand of a job that waits may be."""
        scenario = self._policy.scenario
        any_type = (workload.fungible and scenario != "heterogeneous") or (
            workload.heterogeneous and scenario != "basic"
        )
        # Slower servers are no use to a job whose base demand there would be more workers than one may have.
        fits = workload.min_workers * self._sizes.least_per_loaned_worker <= MAX_WORKERS
        return POOLS if fits and (any_type or self._sizes.has_one_speed) else ("training",)

    def _risks_little(self, job: ElasticJob) -> bool:
        """Whether a preemption would take little from a job, see `most_work_at_risk_s`."""
        if job.workload.keeps_checkpoints:
            return True
        return self._workforce.entry(job).shortest_s <= self._policy.most_work_at_risk_s

    @staticmethod
    def _free_gpus(cluster: Cluster) -> dict[Pool, float]:
        return {"training": cluster.free_gpus("training"), "loaned": cluster.free_gpus("loaned")}


def _movable(resizable: Sequence[ElasticJob]) -> list[str]:
    """The jobs whose flexible workers may go."""
    return [job.job.job_id for job in resizable if job.flexible_pool is not None]


@contextmanager
def _closed(cluster: Cluster, servers: Collection[str]) -> Iterator[None]:
    """Place nothing on these servers for the length of the block."""
    closed = [server for server in servers if cluster.server(server).is_open]
    for server in closed:
        cluster.close(server)
    try:
        yield
    finally:
        for server in closed:
            cluster.open(server)
