"""The workers of a zone's jobs: their servers, and the commands on changes."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

from schemas.elastic.commands import Member, ReleaseReason, WorkersAssigned, WorkersReleased
from schemas.elastic.outcomes import JobProfiled, JobResized, ResizeReason
from schemas.facts import NO_FACTS, Fact
from schemas.fleet import RunProgressed, RunReport
from solvers.elastic.cluster import Cluster
from solvers.elastic.demand import WorkerGrant
from solvers.elastic.making_room import leave
from streams.policies.elastic.elastic_job import ElasticJob, QueueEntry
from streams.policies.elastic.profiles import ElasticProfiles, KnownSteps, kind_of
from streams.policies.elastic.sizes import LeastDemand
from streams.policies.gang.gangs import Cause, Why
from streams.policies.gang.single_job import SingleJobGangs
from streams.policies.gpus import described_gpus
from streams.policies.policy import ZoneContext

_RELEASE_REASONS: Mapping[ResizeReason, ReleaseReason] = {
    "scaled_in": "scaled_in",
    "scaled_out": "scaled_in",
    "moved": "scaled_in",
    "servers_reclaimed": "scaled_in",
    "preempted": "preempted",
    "node_lost": "node_lost",
    "run_failed": "node_lost",
    "gave_way": "preempted",
    "stopped": "withdrawn",
}
"""Reasons of releases, by reason of the change."""
_MOST_UPDATED = 256
"""Most waiting jobs that are examined after a measurement."""


class Workforce(SingleJobGangs[ElasticJob, ResizeReason]):
    """Workers of the jobs of one zone."""

    def __init__(self, context: ZoneContext, cluster: Cluster) -> None:
        super().__init__(context)
        self.cluster = cluster
        self.profiles: ElasticProfiles
        """Set with each configuration of the zone."""
        self.time_s: float | None = None
        self.spanning_speed = 1.0
        """Estimated factor on the speed of a job whose workers are in both pools."""
        self._busy: dict[str, dict[str, None]] = {}
        """Jobs by the node on which they have workers or end them. This and the following fields are computed
        from the jobs."""
        self.shapes: Counter[LeastDemand] = Counter()
        """Number of jobs by least demand; only demands of at least one job."""
        self._idle_jobs: dict[str, None] = {}
        self._entries: dict[str, QueueEntry] = {}
        """Cached entries of jobs in `_idle_jobs`, dropped when a job changes."""
        self._resizable_jobs: dict[str, None] = {}
        self._retrying: dict[str, None] = {}
        """Jobs that wait for a retry, since their last change."""

    def add(self, job: ElasticJob) -> None:
        self.shapes[LeastDemand.of(job.workload)] += 1
        for node in (*job.members, *job.leaving):
            self._busy.setdefault(node, {})[job.job.job_id] = None
        super().add(job)

    @property
    def waiting(self) -> list[ElasticJob]:
        """Jobs that can be given a first set of workers, in the order of their arrival."""
        return _by_arrival(filter(self.is_ready, map(self.jobs.__getitem__, self._idle_jobs)))

    def is_ready(self, job: ElasticJob) -> bool:
        """Return whether a live job without workers can be given a first set of them."""
        return not job.leaving and job.retry_s <= self.orders.elapsed_s

    @property
    def resizable(self) -> list[ElasticJob]:
        """Running jobs with flexible demand, in the order of their arrival, without those whose base demand
        is still to be measured."""
        jobs = map(self.jobs.__getitem__, self._resizable_jobs)
        return _by_arrival(job for job in jobs if job.is_formed and not job.is_assumed)

    @property
    def jobs_without_workers(self) -> int:
        """Number of jobs without workers."""
        return len(self._idle_jobs)

    def end_retries(self) -> None:
        """Note the jobs whose delay after a refused run has ended since the last check."""
        over = [job for job in self._retrying if self.jobs[job].retry_s <= self.orders.elapsed_s]
        for job_id in over:
            del self._retrying[job_id]
        self.has_changed |= bool(over)

    def queue(self) -> list[QueueEntry]:
        """Return the entries of live jobs without workers, in the order of their arrival."""
        return list(map(self.entry, _by_arrival(map(self.jobs.__getitem__, self._idle_jobs))))

    def entry(self, job: ElasticJob) -> QueueEntry:
        """Return the entry of a live job without workers."""
        entry = self._entries.get(job.job.job_id)
        if entry is None:
            entry = self._entries[job.job.job_id] = QueueEntry.of(job)
        return entry

    def is_busy(self, node: str) -> bool:
        return node in self._busy

    def jobs_on(self, node: str) -> list[ElasticJob]:
        return _by_arrival(self.jobs[job_id] for job_id in self._busy.get(node, ()))

    def placed(self, job: ElasticJob) -> dict[str, int]:
        """Return the real workers of a job by server, from the reserved room."""
        placed: dict[str, int] = {}
        for workers in self.cluster.workers_of(job.job.job_id).values():
            for server, count in workers.items():
                placed[server] = placed.get(server, 0) + count
        return placed

    def expected_samples_per_s(self, job: ElasticJob) -> float:
        """Return the expected speed of a job's workers together."""
        return self.speed(job) * job.samples_per_s

    def speed(self, job: ElasticJob) -> float:
        """Return the speed of a job, in seconds of one worker on a training server per second."""
        return job.speedup[job.workers] * (self.spanning_speed_of(job) if job.spans_pools else 1.0)

    def spanning_speed_of(self, job: ElasticJob) -> float:
        """Return the fraction of its speed that a job has in both pools: measured, or the zone's estimate."""
        return self.spanning_speed if job.spanning_speed is None else job.spanning_speed

    def work_left_s(self, job: ElasticJob) -> float:
        """Return the remaining work of a job by now, in seconds of one worker on a training server."""
        # Without a run the speed does not matter.
        return job.work_left_s(self.time_s, 0.0 if job.since_s is None else self.speed(job))

    def base_left_s(self, job: ElasticJob) -> float:
        """Return the time that a job's remaining work takes with its base demand (s). If the job is late, it
        is at least the delay so far."""
        left_s = self.work_left_s(job) / job.speedup[job.workload.min_workers]
        if job.due_s is None or self.time_s is None:
            return left_s
        return max(left_s, self.time_s - job.due_s)

    def start(self, job: ElasticJob, workers: int, grant: WorkerGrant, facts: Mapping[str, Fact]) -> None:
        """Start a waiting job with the workers that the cluster has for it."""
        has_flexible = workers > job.workload.min_workers
        job.pool, job.flexible_pool = grant.pool, grant.flexible_pool if has_flexible else None
        reason: ResizeReason = "resumed" if job.generation else "started"
        job.promised_per_s = None if job.generation or job.is_assumed else job.samples_per_s
        if self.time_s is not None:
            job.due_s = self.time_s + self.base_left_s(job)
        self._assign(job, workers, Why(reason, facts))

    def resize(
        self, job: ElasticJob, held: int, added: int, grant: WorkerGrant, loss_facts: Mapping[str, Fact]
    ) -> None:
        """Resize a running job to the workers that the cluster has for it.

        Args:
            held: number of workers that it keeps.
            added: number of new workers, in the grant's pool of flexible workers.
            loss_facts: facts of the loss of workers.
        """
        before, workers = job.workers, held + added
        if workers == before and not added:
            return
        if added or held == job.workload.min_workers:
            job.flexible_pool = grant.flexible_pool if added else None
        reason: ResizeReason = (
            "scaled_out" if workers > before else "scaled_in" if workers < before else "moved"
        )
        self._assign(job, workers, Why(reason, loss_facts if workers < before else NO_FACTS))

    def vacate(self, job: ElasticJob, servers: Sequence[str]) -> None:
        """Release the room of a running job on some servers; its workers on others suffice for its base
        demand. `follow_room` resizes it to them.

        The workers that it keeps count as its base demand first, in any pool.
        """
        job_id, cluster = job.job.job_id, self.cluster
        for server in servers:
            leave(cluster, job_id, server)
        cluster.drop_fractions(job_id)
        job.pool = cluster.pool_of_workers(job_id, "base") or job.pool
        job.flexible_pool = cluster.pool_of_workers(job_id, "flexible")

    def follow_room(self, job: ElasticJob, why: Why[ResizeReason]) -> None:
        """Resize a running job to the workers for which it has room, at least its base demand."""
        self.has_changed = True
        flexible = self.cluster.normalised_workers(job.job_id, "flexible")
        self._assign(job, job.workload.min_workers + flexible, why)

    def _assign(self, job: ElasticJob, workers: int, why: Why[ResizeReason]) -> None:
        """Begin the job's next generation, of the workers that the cluster has for it."""
        placed = self.placed(job)
        kept = {node: placed[node] for node in job.members if node in placed}
        left = {node: job.members[node] for node in job.working if node not in placed}
        before, resumes, replaced = job.workers, not job.members, job.generation
        self.leave(job, left, replaced)
        self._begin_generation(job, replaced + 1, {**kept, **placed})
        done, job.done = job.done, {}
        job.workers, job.since_s = workers, None
        for node in done:
            if node not in job.members:
                self._release_node(job, node)
        for node in job.members:
            self._busy.setdefault(node, {})[job.job.job_id] = None
        self.note(job)
        change = self._changed(job, before, why)
        self._outcomes.add(change)
        for node in left:
            self._outcomes.add(self._released(job, node, replaced, why))
        members = change.servers
        order = WorkersAssigned(
            zone=self.zone,
            node=members[0].node,
            run_id=job.run_id,
            job_id=job.job.job_id,
            user=job.job.user,
            generation=job.generation,
            members=members,
            resumes=resumes,
            resume_samples=job.job.samples_done,
            expected_samples_per_s=self.expected_samples_per_s(job),
            workload=job.workload,
        )
        self._outcomes.add(order)
        for member in members[1:]:
            self._outcomes.add(order.model_copy(update={"node": member.node}))

    def describe_server(self, server_id: str) -> dict[str, Any]:
        """Describe a server for an operator, in values that JSON has."""
        server = self.cluster.server(server_id)
        workers: dict[str, dict[str, int]] = {}
        held: dict[str, int] = {}
        for job_id in server.jobs:
            parts = self.cluster.parts_of(job_id)
            workers[job_id] = {
                kind: part.workers[server_id] for kind, part in parts.items() if server_id in part.workers
            }
            held[job_id] = sum(workers[job_id].values()) * self.cluster.gpus_per_worker(job_id)
        return {
            "pool": server.pool,
            **described_gpus(server.gpus, held, server.is_open),
            "is_busy": self.is_busy(server_id),
            "workers": workers,
        }

    def note(self, job: ElasticJob) -> None:
        super().note(job)
        job_id = job.job.job_id
        is_there = job_id in self.jobs
        _keep(self._idle_jobs, job_id, is_there and not job.members and not job.is_ending)
        _keep(self._retrying, job_id, is_there and job.retry_s > self.orders.elapsed_s)
        self._entries.pop(job_id, None)
        _keep(self._resizable_jobs, job_id, is_there and bool(job.members) and job.is_elastic)

    def _width(self, job: ElasticJob) -> int:
        return job.workers

    def _changed(self, job: ElasticJob, width_before: int, why: Why[ResizeReason]) -> JobResized:
        workers = job.workers or job.workload.min_workers
        return JobResized(
            zone=self.zone,
            job_id=job.job_id,
            generation=job.generation,
            reason=why.reason,
            workers_before=width_before,
            workers=job.workers,
            pool=job.pool,
            flexible_pool=job.flexible_pool,
            servers=tuple(Member(node=node, workers=count) for node, count in job.members.items()),
            remaining_s=self.work_left_s(job) / job.speedup[workers],
            samples_done=job.job.samples_done,
            facts=dict(why.facts),
        )

    def _released(
        self, job: ElasticJob, node: str, generation: int, why: Why[ResizeReason]
    ) -> WorkersReleased:
        return WorkersReleased(
            zone=self.zone,
            node=node,
            job_id=job.job_id,
            generation=generation,
            run_id=job.run_of(generation),
            reason=_RELEASE_REASONS[why.reason],
            by_s=why.by_s,
        )

    def _why(self, job: ElasticJob, cause: Cause, facts: Mapping[str, Fact] = NO_FACTS) -> Why[ResizeReason]:
        match cause:
            case "withdrawn" | "work_done":
                return Why("stopped", {"case": cause})
            case "run_failed" if job.given_up is not None:
                return Why("stopped", facts)
            case _:
                return super()._why(job, cause, facts)

    def _quiet_after_start_s(self, job: ElasticJob) -> float:
        return self.work_left_s(job) / self.speed(job)

    def _started(self, job: ElasticJob, samples_done: int) -> None:
        job.since_s = self.time_s
        self._progressed(job, samples_done)
        self.has_changed = True

    def _apply_report(self, job: ElasticJob, report: RunReport) -> None:
        super()._apply_report(job, report)
        if isinstance(report, RunProgressed) and not report.complete and job.is_formed:
            self._measure(job, report)

    def _measure(self, job: ElasticJob, report: RunProgressed) -> None:
        """Correct the expected speed of a job by a report of its progress."""
        steps, workload = report.measured, job.workload
        measured_per_s = self._by_progress(job, report) if steps is None else steps.samples_per_s
        if measured_per_s is None:
            return
        counts = steps is not None and self.profiles.add(workload, job.job.user, job.members, steps)
        is_first = job.measured_generation < job.generation
        expected_per_s, expected_from = self.expected_samples_per_s(job), job.expected.speed_from
        if is_first and (counts or job.is_assumed):
            known = self.profiles.known(workload, job.job.user) if counts else None
            job.learn(known or KnownSteps.of_speed(workload, job.workers, measured_per_s))
            self._update_waiting(kind_of(workload))
        job.measure(measured_per_s, self.spanning_speed)
        gave_way = job.gives_way
        job.check_promise(measured_per_s / self.speed(job))
        self.has_changed |= is_first or (job.gives_way and not gave_way)
        job.note_deviation(measured_per_s / expected_per_s)
        if not is_first:
            return
        job.measured_generation = job.generation
        gpus = sum(job.members.values()) * workload.gpus_per_worker
        self._outcomes.add(
            JobProfiled(
                zone=self.zone,
                job_id=job.job_id,
                generation=job.generation,
                workers=job.workers,
                samples_per_s=measured_per_s,
                expected_samples_per_s=expected_per_s,
                expected_from=expected_from,
                remaining_s=self.work_left_s(job) / self.speed(job),
                duration_error_pct=job.duration_error_pct,
                profile_gpu_s=report.node_s * gpus if expected_from == "assumed" else 0.0,
            )
        )

    def _update_waiting(self, kind: Hashable) -> None:
        """Set the measured speed of a kind in the first waiting jobs of that kind that have none."""
        for job in islice((job for job in self.waiting if not job.is_known_by_runs), _MOST_UPDATED):
            if kind_of(job.workload) != kind:
                continue
            known = self.profiles.known(job.workload, job.job.user)
            if known is not None:
                job.learn(known)
                self._entries.pop(job.job_id, None)

    def _by_progress(self, job: ElasticJob, report: RunProgressed) -> float | None:
        """Return the speed by the progress since the last report, for a job without a known speed whose
        runner measures no steps; None for others, or without progress."""
        if not job.is_assumed or job.since_s is None or self.time_s is None:
            return None
        samples, elapsed_s = report.samples_done - job.job.samples_done, self.time_s - job.since_s
        return samples / elapsed_s if samples > 0 and elapsed_s > 0 else None

    def _progressed(self, job: ElasticJob, samples_done: int) -> None:
        job.progress(samples_done)
        if job.since_s is not None:
            job.since_s = self.time_s

    def _release_job(self, job: ElasticJob) -> None:
        job.since_s, job.waits_since_s = None, self.time_s or 0.0
        job.workers, job.pool, job.flexible_pool, job.due_s = 0, None, None, None
        job.promised_per_s, job.refutations = None, 0
        self.cluster.remove(job.job.job_id)

    def _release_node(self, job: ElasticJob, node: str) -> None:
        jobs = self._busy.get(node)
        if jobs is not None:
            jobs.pop(job.job.job_id, None)
            if not jobs:
                del self._busy[node]

    def _release_ended(self, job: ElasticJob) -> None:
        self.shapes -= Counter((LeastDemand.of(job.workload),))


def _by_arrival(jobs: Iterable[ElasticJob]) -> list[ElasticJob]:
    return sorted(jobs, key=attrgetter("arrival"))


def _keep(names: dict[str, None], name: str, is_in: bool) -> None:
    if is_in:
        names[name] = None
    else:
        names.pop(name, None)
