"""The state that a merging zone's jobs and tasks must be in, from what was ordered and reported alone."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted
from schemas.merging.problems import Share, TransferMode
from schemas.merging.reports import TaskProfiled
from tests.streams.gang.specification import TIMES_EXPECTED, Specification

TIMEOUT_S = 1_200.0
PROFILE_LIMIT_S = 60.0
BATCH = 8
WORK_SAMPLES = 800

Grant = tuple[str, dict[str, int]]
"""Id of a task that begins, and its GPUs by node."""


@dataclass
class SpecifiedJob(Specification):
    """A job: a gang that has one process at a time, with the states of merging besides."""

    work_samples: int = WORK_SAMPLES
    all_report: bool = False
    job_id: str = ""
    stage: str = "new"
    void_generation: int = 0
    """Generation of the last run of which nothing is kept, since the job was merged before it had ended."""
    never_merges: bool = False
    has_learned: bool = False
    """Whether it was ever merged to learn from another job."""
    failed_s: float | None = None
    """Time of the last failure after which the job backs off, by less than time goes on at once."""

    @property
    def run_id(self) -> str:
        """Id of the newest run."""
        return f"{self.generation}/{self.job_id}"

    @property
    def is_fresh(self) -> bool:
        """Whether no step is done."""
        return self.samples_done < BATCH

    def backs_off(self, now_s: float) -> bool:
        """Whether no run begins since a run was refused or silent."""
        return self.failed_s == now_s

    def begin(self, nodes: Sequence[str], generation: int | None = None) -> None:
        super().begin(nodes, generation)
        self.keeps_progress = True

    def forget(self) -> None:
        """Nothing is kept of a run that may still exist."""
        self.void_generation, self.keeps_progress = self.generation, False
        self.samples_done = self.furthest_samples = 0

    def count_failure(self, permanent: bool) -> None:
        super().count_failure(permanent)
        if self.stage == "profiling" and not permanent and self.ending == "refunded":
            self.stage, self.failures, self.never_merges, self.ending = "ready", 0, True, None

    def _set(self, samples: int) -> None:
        if self.stage != "profiling":
            super()._set(samples)


@dataclass
class SpecifiedTask:
    """A task. It is pending while an earlier run of its jobs may still exist."""

    task_id: str
    job_ids: tuple[str, ...]
    mode: TransferMode
    members: dict[str, int]
    """GPUs by node, the leader first."""
    is_pending: bool = True

    @property
    def active(self) -> tuple[str, ...]:
        """Jobs that are trained now: the receiver of a temporal merge follows its donor."""
        return self.job_ids[:1] if self.mode == "temporal" else self.job_ids

    def is_given(self, share: Share) -> bool:
        """Whether a plan changes nothing."""
        return self.goes_on(share) and share.gpus == sum(self.members.values())

    def goes_on(self, share: Share) -> bool:
        """Whether a plan changes its GPUs at most."""
        return self.job_ids == share.job_ids and (len(share.job_ids) == 1 or self.mode == share.mode)


@dataclass
class TasksSpecification:
    """The specification of one zone."""

    gpus: dict[str, int]
    """By node, as many on each."""
    now_s: float = 0.0
    jobs: dict[str, SpecifiedJob] = field(default_factory=dict)
    tasks: list[SpecifiedTask] = field(default_factory=list)
    generations: dict[str, int] = field(default_factory=dict)
    """Newest generation by task id, which a later task of its first job may have."""
    down: set[str] = field(default_factory=set)
    orders: list[tuple[object, ...]] = field(default_factory=list)
    """Orders to begin and to end runs."""
    ends: list[tuple[str, str]] = field(default_factory=list)
    """Jobs that are over, and how they ended."""
    pairs: dict[tuple[str, ...], TransferMode] = field(default_factory=dict)
    """Pairs that wait to be resumed, with their modes."""
    barred: set[tuple[str, str, str]] = field(default_factory=set)
    """Mode, donor and receiver of merges whose runs have failed."""

    def task_of(self, job: SpecifiedJob) -> SpecifiedTask | None:
        """Return the task that a job is part of."""
        return next((task for task in self.tasks if job.job_id in task.job_ids), None)

    def idle(self) -> dict[str, int]:
        """Return the GPUs of nodes that are up which no task and no profile run in force has."""
        idle = {node: gpus for node, gpus in self.gpus.items() if node not in self.down}
        held = [node_gpus for task in self.tasks for node_gpus in task.members.items()]
        profiled = [job for job in self.jobs.values() if job.stage == "profiling"]
        for node, gpus in [*held, *((job.leader, 1) for job in profiled)]:
            idle[node] -= gpus
        return idle

    def available(self) -> int:
        """Return the GPUs that a plan may give: without those of profile runs and of tasks that no plan may
        change, and without at most a quarter for jobs that are still to be profiled."""
        up = sum(gpus for node, gpus in self.gpus.items() if node not in self.down)
        kept = sum(sum(task.members.values()) for task in self.tasks if self.keeps(task))
        stages = [job.stage for job in self.jobs.values()]
        return up - kept - stages.count("profiling") - min(stages.count("new"), up // 4)

    # Orders of the zone

    def profile(self, job: SpecifiedJob, node: str) -> None:
        """A profile run begins: of a new job without any run, on an idle GPU."""
        assert job.stage == "new"
        assert not job.backs_off(self.now_s)
        assert self.idle()[node] > 0
        job.stage = "profiling"
        self._begin(job, job.generation + 1, node, PROFILE_LIMIT_S)

    def keeps(self, task: SpecifiedTask) -> bool:
        """Whether no plan may change a task: one job is left of a temporal merge, with no step of its own."""
        return task.mode == "temporal" and len(task.job_ids) == 1 and self.jobs[task.job_ids[0]].is_fresh

    def may_ask(self, job: SpecifiedJob) -> bool:
        """Whether a plan may have the job."""
        task = self.task_of(job)
        is_free = task is None or not self.keeps(task)
        return job.stage == "ready" and not job.ending and is_free and not job.backs_off(self.now_s)

    def fits(self, share: Share) -> bool:
        """Whether a share of a plan is possible, if GPUs are idle."""
        jobs = [self.jobs.get(job_id) for job_id in share.job_ids]
        there = [job for job in jobs if job is not None and job.stage == "ready" and not job.ending]
        tasks = [self.task_of(job) for job in there]
        if len(there) < len(jobs) or any(task is not None and self.keeps(task) for task in tasks):
            return False
        first = tasks[0]
        if len(jobs) == 1:
            if first is None:
                return all(mode == "temporal" for ids, mode in self.pairs.items() if share.job_ids[0] in ids)
            return first.mode != "spatial" or len(first.job_ids) == 1
        if (first is not None and first.goes_on(share)) or self.resumes(share):
            return True
        learners = there if share.mode == "spatial" else there[1:]
        return all(job.is_fresh for job in learners) and not any(job.never_merges for job in there)

    def resumes(self, share: Share) -> bool:
        """Whether a share resumes a pair in its mode."""
        return self.pairs.get(share.job_ids) == share.mode

    def plan(self, shares: Sequence[Share], granted: Mapping[tuple[str, ...], Grant]) -> None:
        """A plan is carried out: what it leaves out or changes stops, and what it has begins.

        Args:
            granted: by the jobs of each task that begins.
        """
        unfit = {job_id for share in shares if not self.fits(share) for job_id in share.job_ids}
        wanted = [share for share in shares if unfit.isdisjoint(share.job_ids)]
        stopped = [
            task
            for task in self.tasks
            if unfit.isdisjoint(task.job_ids) and not self.keeps(task) and not any(map(task.is_given, wanted))
        ]
        given = {task.task_id: self._share_of(task, wanted) for task in stopped}
        for task in stopped:
            self._stop(task)
            if task.mode == "spatial" and given[task.task_id] is None:
                self._wait(task)
        begun = set()
        for share in sorted(wanted, key=lambda share: (-share.gpus, share.job_ids)):
            jobs = [self.jobs[job_id] for job_id in share.job_ids]
            idle = self.idle()
            if any(self.task_of(job) for job in jobs) or sum(idle.values()) < share.gpus:
                continue
            goes_on = self.resumes(share) or any(task.goes_on(share) for task in stopped)
            self._forget_pairs(share.job_ids)
            if len(jobs) == 2 and not goes_on and (share.mode, *share.job_ids) in self.barred:
                continue
            begun.add(share.job_ids)
            task_id, members = granted[share.job_ids]
            assert sum(members.values()) == share.gpus
            assert all(gpus <= idle[node] for node, gpus in members.items())
            if len(jobs) == 2 and not goes_on:
                self._merge(jobs if share.mode == "spatial" else jobs[1:])
            self.tasks.append(SpecifiedTask(task_id, share.job_ids, share.mode, members))
        for task in stopped:
            share_of = given[task.task_id]
            goes_on = share_of is not None and task.goes_on(share_of)
            if task.mode == "spatial" and goes_on and task.job_ids not in begun:
                self._wait(task)
        assert begun == set(granted)
        self.settle()

    def preempt(self, job: SpecifiedJob) -> None:
        """The zone stops the task of a job, to have another job profiled."""
        self._put_back(job, keeps=True)
        self.settle()

    # Reports of a run that may still exist

    def report(self, job: SpecifiedJob, report: RunReport, forecast_s: float) -> None:
        """Apply the report of the leader of a run that may still exist.

        Args:
            forecast_s: forecast of the remaining time of the job's task after that.
        """
        match report:
            case RunStarted() | RunProgressed(complete=False) if job.in_force:
                self._goes_on(job, report, forecast_s)
            case RunFailed():
                self.failed(job, report.node, report.permanent)
            case RunFinished() if job.ending is None and job.stage != "profiling":
                self._finished(job, report.samples_done, forecast_s)
            case TaskProfiled() if job.in_force:
                if job.stage == "profiling":
                    job.stage, job.in_force, job.alive = "ready", (), set()
            case RunFinished() | RunProgressed(complete=True) | TaskProfiled():
                self._ended(job, None if isinstance(report, TaskProfiled) else report.samples_done)
        self.settle()

    def _goes_on(self, job: SpecifiedJob, report: RunStarted | RunProgressed, forecast_s: float) -> None:
        job.progressed(report.node, job.generation, report.samples_done)
        follows, is_start = self.follows(job), isinstance(report, RunStarted)
        if is_start and job.stage == "profiling":
            forecast_s = PROFILE_LIMIT_S
        if not follows:
            job.last_seen_s, job.quiet_s = self.now_s, forecast_s if is_start else 0.0

    def _ended(self, job: SpecifiedJob, samples: int | None) -> None:
        """A run has ended, as ordered or too early."""
        if samples is None or job.stage == "profiling":
            samples = None  # a profile run makes no progress
            job.alive.clear()
        if job.in_force:
            self._put_back(job, without=job.leader)
        if samples is not None:
            job.ended(job.leader, job.generation, samples)

    def _finished(self, job: SpecifiedJob, samples: int, forecast_s: float) -> None:
        """All of a job's work is done; its partner goes on."""
        job.finished(job.leader, job.generation, samples)
        task = self.task_of(job)
        if task is None:
            return
        was_active = job.job_id in task.active
        task.job_ids = tuple(other for other in task.job_ids if other != job.job_id)
        if task.is_pending:
            task.mode = "normal"
        if not task.job_ids:
            self.tasks.remove(task)
        elif task.mode == "temporal" and was_active:
            follower = self.jobs[task.job_ids[0]]
            follower.last_seen_s, follower.quiet_s = self.now_s, forecast_s

    def failed(self, job: SpecifiedJob, node: str, permanent: bool = False, backs_off: bool = False) -> None:
        """A run has failed on a node. The merge may be the reason where it is of two jobs."""
        if job.in_force:
            self._count_failure(job, permanent, backs_off)
            self._put_back(job, without=node)
        job.alive.discard((node, job.generation))
        self.settle()

    # Refusals, losses, and what users and time do

    def refuses(self, job: SpecifiedJob, node: str, generation: int) -> bool:
        """Whether a refusal counts: of a leader's run, or of any member's part of a task in force."""
        task = self.task_of(job)
        is_part = task is not None and not task.is_pending and node in task.members
        return (is_part and generation == job.generation) or job.is_known(node, generation)

    def lost(self, node: str, held: Iterable[str] = ()) -> None:
        """A node is lost with all runs but those that it continues."""
        held = set(held)
        for job in self.jobs.values():
            task = self.task_of(job)
            runs = [job] if task is None else [self.jobs[each] for each in task.job_ids]
            nodes = [job.leader] if task is None else task.members
            if node in nodes and not any(each.in_force and each.run_id in held for each in runs):
                # A profile run that is lost needs no order: the next one of the job replaces it.
                self._put_back(job, without=node, keeps=True)
            if not job.in_force:
                job.lost(node, {job.generation} if job.run_id in held else set())
        self.settle()

    def withdrawn(self, job: SpecifiedJob) -> None:
        """The user withdraws the job."""
        self._put_back(job, ending="withdrawn")
        job.withdrawn()
        self.settle()

    def tick(self, now_s: float) -> None:
        """Runs that are silent for too long have failed, or have ended where they were to."""
        self.now_s = now_s
        for job in list(self.jobs.values()):
            if job.in_force and now_s - job.last_seen_s > TIMEOUT_S + TIMES_EXPECTED * job.quiet_s:
                self.failed(job, job.leader, backs_off=True)
            if not job.in_force and now_s - job.released_s > TIMEOUT_S:
                job.alive.clear()
        self.settle()

    def settle(self) -> None:
        """Pending tasks begin once no earlier run exists, and jobs are over once none of their runs does."""
        self._forget_pairs([job_id for job_id, job in self.jobs.items() if job.ending])
        for task in self.tasks:
            jobs = [self.jobs[job_id] for job_id in task.job_ids]
            if not task.is_pending or any(job.alive for job in jobs):
                continue
            generation = 1 + max(self.generations.get(task.task_id, 0), *(job.generation for job in jobs))
            self.generations[task.task_id] = generation
            leader, task.is_pending = next(iter(task.members)), False
            for job in jobs:
                self._begin(job, generation, leader, math.inf if self.follows(job) else 0.0)
            from_samples = tuple((job.run_id, job.samples_done // BATCH, job.void_generation) for job in jobs)
            self.orders += [("begin", node, task.mode, from_samples) for node in task.members]
        for job in list(self.jobs.values()):
            if job.ending is not None and job.is_over:
                del self.jobs[job.job_id]
                self.ends.append((job.job_id, job.ending))

    def _begin(self, job: SpecifiedJob, generation: int, leader: str, quiet_s: float) -> None:
        job.begin((leader,), generation)
        job.last_seen_s, job.quiet_s = self.now_s, quiet_s

    def _count_failure(self, job: SpecifiedJob, permanent: bool, backs_off: bool) -> None:
        task = self.task_of(job)
        if task is not None and len(task.job_ids) == 2 and not permanent:
            one, other = task.job_ids
            self.barred.add((task.mode, one, other))
            if task.mode == "spatial":
                self.barred.add((task.mode, other, one))
            return
        job.count_failure(permanent)
        if backs_off:
            job.failed_s = self.now_s

    def follows(self, job: SpecifiedJob) -> bool:
        """Whether a job waits in its task for its donor's end."""
        task = self.task_of(job)
        return task is not None and job.job_id not in task.active

    def _merge(self, learners: Iterable[SpecifiedJob]) -> None:
        for job in learners:
            job.has_learned = True
            if job.alive:
                job.forget()

    def _put_back(
        self, job: SpecifiedJob, without: str = "", keeps: bool = False, ending: str | None = None
    ) -> None:
        """The task of a job stops, pending or not, or its profile run.

        Args:
            keeps: whether a pair waits to be resumed.
            ending: how the job ends, if it does.
        """
        task = self.task_of(job)
        end = job.ending or ending
        ends = [] if end is None else [(job.job_id, end)]
        if task is not None:
            self._stop(task, ends)
            if keeps:
                self._wait(task)
        elif job.in_force:
            job.preempted()
            job.released_s = self.now_s
            job.stage = "new" if job.stage == "profiling" else job.stage
            if without != job.leader:
                self.orders.append(("end", job.leader, (job.run_id,), ends))

    def _wait(self, task: SpecifiedTask) -> None:
        """The jobs of a task that has stopped wait as a pair, if there are two."""
        if len(task.job_ids) == 2 and not any(self.jobs[job_id].ending for job_id in task.job_ids):
            self.pairs[task.job_ids] = task.mode

    def _forget_pairs(self, job_ids: Iterable[str]) -> None:
        """Pairs with these jobs no longer wait."""
        jobs = set(job_ids)
        self.pairs = {ids: mode for ids, mode in self.pairs.items() if jobs.isdisjoint(ids)}

    @staticmethod
    def _share_of(task: SpecifiedTask, shares: Iterable[Share]) -> Share | None:
        return next((share for share in shares if task.job_ids[0] in share.job_ids), None)

    def _stop(self, task: SpecifiedTask, ending: Sequence[tuple[str, str]] = ()) -> None:
        """The GPUs of a task are free at once. Its runs are to end, if they have begun.

        Args:
            ending: job that is ending, and how: nothing is kept of it.
        """
        self.tasks.remove(task)
        if task.is_pending:
            return
        runs = tuple(self.jobs[job_id].run_id for job_id in task.active)
        self.orders += [("end", node, runs, list(ending)) for node in task.members]
        for job_id in task.job_ids:
            job = self.jobs[job_id]
            job.preempted()
            job.released_s = self.now_s
            if job_id not in task.active:
                job.alive.clear()
