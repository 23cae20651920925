"""The tasks of a zone: the jobs that run together, their GPUs, and the commands on changes.

GPUs that a task gives up are free for others at once: a node obeys commands in their order, so the next task
starts after the last step of the one before. A job is resumed only after the leader of its earlier run has
reported the end, which means that its checkpoint is written.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from schemas.facts import NO_FACTS, Fact
from schemas.fleet import RunFailed, RunReport
from schemas.merging.commands import (
    TaskAssigned,
    TaskReleaseReason,
    TransferMode,
)
from schemas.merging.outcomes import MergeForecast, TaskChanged, TaskChangeReason
from streams.policies.gang.gangs import Cause, Why
from streams.policies.gpus import Gpus
from streams.policies.merging.duration_forecasts import Forecasts
from streams.policies.merging.library import Library
from streams.policies.merging.profile_runs import ProfileRuns, release_reason
from streams.policies.merging.tuning_job import TuningJob
from streams.policies.merging.tuning_task import TuningTask
from streams.policies.merging.waiting_pairs import keep
from streams.policies.orders import facts_of_failure
from streams.policies.policy import ZoneContext

_KEEPING: Final[tuple[TaskChangeReason, ...]] = ("node_lost", "preempted")
"""Reasons for which a pair waits to be resumed: its jobs are not the cause."""


class Tasks(ProfileRuns):
    """Tasks of one zone, and its profile runs."""

    def __init__(self, context: ZoneContext, gpus: Gpus, forecasts: Forecasts) -> None:
        super().__init__(context, gpus)
        self.forecasts = forecasts
        self.library = Library()
        self.all: dict[str, TuningTask] = {}
        """Tasks by id, in the order of their begin."""
        self.begun = 0
        """Number of tasks begun by now, from which ids are made."""

    def restore(self, tasks: Iterable[TuningTask]) -> None:
        """Set the tasks, and hold their GPUs. The jobs are not yet set."""
        for task in tasks:
            self.all[task.task_id] = task
            self.gpus.hold(task.task_id, task.members)

    def jobs_on(self, node: str) -> list[TuningJob]:
        return [job for job in self.jobs.values() if node in self._placement(job)[0] or node in job.leaving]

    def is_busy(self, node: str) -> bool:
        return bool(self.gpus.holders(node)) or any(node in job.leaving for job in self.jobs.values())

    @property
    def waiting(self) -> int:
        """Number of jobs without a task."""
        return len(self.jobs) - sum(len(task.job_ids) for task in self.all.values())

    def ready(self) -> list[TuningJob]:
        """Return the jobs that wait for GPUs and could use some, in the order of their arrival."""
        return [
            job
            for job in self.jobs.values()
            if job.stage == "ready" and job.task is None and self.may_run(job)
        ]

    def task_of(self, job: TuningJob) -> TuningTask | None:
        """Return the task that a job is part of."""
        return None if job.task is None else self.all[job.task]

    def jobs_of(self, task: TuningTask) -> list[TuningJob]:
        """Return the jobs of a task, the donor of a temporal merge first."""
        return [self.jobs[job_id] for job_id in task.job_ids]

    def remaining_s(self, task: TuningTask) -> float:
        """Return the time of a task's remaining work."""
        return self.forecasts.remaining_s(self.jobs_of(task), task.mode, task.gpus)

    def begin(
        self,
        mode: TransferMode,
        jobs: Sequence[TuningJob],
        gpus: int,
        reason: TaskChangeReason,
        forecasts: Sequence[MergeForecast] = (),
        before: TuningTask | None = None,
    ) -> bool:
        """Begin a task of jobs without GPUs: reserve GPUs, and run it once the jobs' earlier runs are over.

        Args:
            before: the previous task of the first job, whose nodes are preferred.

        Returns:
            whether enough GPUs are idle; otherwise nothing changes.
        """
        task_id = before.task_id if before is not None else f"t{self.begun + 1}"
        members = self.gpus.place(task_id, gpus, {} if before is None else before.members)
        if members is None:
            return False
        if before is None:
            self.begun += 1
        task = TuningTask(
            task_id,
            mode,
            tuple(job.job_id for job in jobs),
            members,
            before.generation if before is not None else 0,
            since_s=self.time_s,
            watched_epochs=self.policy.watched_epochs,
        )
        self.all[task_id] = task
        for job in jobs:
            job.task = task_id
            if job.merge is not None:
                job.merge.place = None
        for job in jobs[: len(task.active_job_ids)]:
            job.waited_s += self.time_s - job.waits_since_s
        self.changed(task, reason, gpus_before=0 if before is None else before.gpus, forecasts=forecasts)
        self._assign(task)
        for job in jobs:
            self.note(job)
        return True

    def stop(self, task: TuningTask, reason: TaskReleaseReason, about: Sequence[str] = ()) -> None:
        """End a task and release its GPUs; its jobs wait.

        Args:
            about: the jobs that the reason is about; all of the task by default.
        """
        del self.all[task.task_id]
        self.gpus.give_back(task.task_id, task.members)
        jobs = self.jobs_of(task)
        for job in jobs:
            self._leave_task(job, task)
        if not task.is_assigned:
            return
        runs = [job for job in jobs if job.job_id in task.active_job_ids]
        for node in task.members:
            self._release(node, task.task_id, task.generation, tuple(about) or task.job_ids, reason, runs)

    def separate(self, task: TuningTask, keeps: bool = False) -> None:
        """Separate the jobs of an ended task. If the receiver of a temporal merge had not begun, or no step
        is done yet, there was no merge.

        Args:
            keeps: whether the pair waits to be resumed in its mode.
        """
        jobs = self.jobs_of(task)
        if keeps and len(jobs) == 2 and not any(job.is_ending for job in jobs):
            keep(jobs)
            return
        for job in jobs:
            if task.follower is not None:
                job.merge = None
            else:
                self._forget_empty_merge(job)

    def changed(
        self,
        task: TuningTask,
        reason: TaskChangeReason,
        facts: Mapping[str, Fact] = NO_FACTS,
        gpus_before: int | None = None,
        forecasts: Sequence[MergeForecast] = (),
    ) -> None:
        """Report the present form of a task, without GPUs if it has ended.

        Args:
            gpus_before: its GPUs before; its present ones by default.
        """
        is_there = task.task_id in self.all
        self._outcomes.add(
            TaskChanged(
                zone=self.zone,
                task_id=task.task_id,
                generation=task.generation,
                mode=task.mode,
                job_ids=task.job_ids,
                reason=reason,
                gpus_before=task.gpus if gpus_before is None else gpus_before,
                gpus=task.gpus if is_there else 0,
                members=task.described_members() if is_there else (),
                remaining_s=self.remaining_s(task) if is_there else 0.0,
                foretold=tuple(forecasts),
                facts=dict(facts),
            )
        )

    def refuse(self, job: TuningJob, failed: RunFailed) -> None:
        task = self.task_of(job)
        is_part = task is not None and task.is_assigned and failed.node in task.members
        if is_part and failed.run_id == job.run_id:
            self._fail_run(job, failed, backs_off=True)
        else:
            self.report(job, failed, backs_off=True)

    def evict(self, node: str, facts: Mapping[str, Fact]) -> None:
        """Preempt the tasks of a node."""
        for task in [task for task in self.all.values() if node in task.members]:
            self.preempt(self.jobs[task.job_ids[0]], facts)

    def end(self, job: TuningJob, why: Why[TaskChangeReason], without: str | None = None) -> None:
        """End a job's profile run or its task; the other job of the task waits for GPUs."""
        task = self.task_of(job)
        if task is not None:
            self.stop(task, release_reason(job, why), (job.job_id,) if job.is_ending else ())
            self.separate(task, keeps=why.reason in _KEEPING)
            self.changed(task, why.reason, why.facts)
        elif job.members:
            self.abort_profile(job, why, without)
        self._end_if_over(job)

    def _placement(self, job: TuningJob) -> tuple[Collection[str], Sequence[str]]:
        task = self.task_of(job)
        if task is None:
            return super()._placement(job)
        return task.members, [each.run_id for each in self.jobs_of(task) if each.members]

    def _bytes_of(self, job: TuningJob) -> int:
        task = self.task_of(job)
        return job.state_bytes + (0 if task is None else task.state_bytes)

    def _assign(self, task: TuningTask) -> None:
        """Order the nodes of a task to run it, if all earlier runs of its jobs have ended."""
        jobs = self.jobs_of(task)
        if task.is_assigned or any(job.leaving for job in jobs):
            return
        task.generation = 1 + max(task.generation, *(job.generation for job in jobs))
        task.is_assigned, task.since_s = True, self.time_s
        for job in jobs:
            # The run of a follower begins at the end of its donor.
            quiet_s = math.inf if task.follower == job.job_id else 0.0
            self._begin_generation(job, task.generation, {task.leader: task.members[task.leader]}, quiet_s)
            self.note(job)
        order = TaskAssigned(
            zone=self.zone,
            node=task.leader,
            task_id=task.task_id,
            generation=task.generation,
            mode=task.mode,
            orders=tuple(job.order(job.run_id) for job in jobs),
            members=task.described_members(),
            watched_epochs=task.watched_epochs,
        )
        self._outcomes.extend(order.model_copy(update={"node": node}) for node in task.members)

    def _leave_task(self, job: TuningJob, task: TuningTask) -> None:
        if job.job_id in task.active_job_ids:
            self._account(job, task)
            self.leave(job, job.members, job.generation)
            job.waits_since_s = self.time_s
            job.restarts += 1
        job.task, job.members = None, {}
        self.note(job)

    def _release_job(self, job: TuningJob) -> None:
        """Remove a job that is done from its task, which continues with the other job or ends."""
        task = self.task_of(job)
        if task is None:
            return
        was_active = job.job_id in task.active_job_ids
        if was_active:
            self._account(job, task)
        task.job_ids = tuple(other for other in task.job_ids if other != job.job_id)
        job.task = None
        self.note(job)
        if not task.job_ids:
            del self.all[task.task_id]
            self.gpus.give_back(task.task_id, task.members)
            return
        (other,) = self.jobs_of(task)
        if was_active:
            if task.mode == "temporal":
                other.waited_s += self.time_s - other.waits_since_s
                other.mark_seen(self.orders.elapsed_s, self.remaining_s(task))
            else:
                self._account(other, task)
            task.since_s = self.time_s
        if not task.is_assigned:
            # Its nodes were never ordered to merge.
            if task.mode == "temporal":
                other.merge = None
            task.mode = "normal"
        self.changed(task, "job_over")
        self._assign(task)

    def _release_node(self, job: TuningJob, node: str) -> None:  # noqa: ARG002
        self._forget_empty_merge(job)
        task = self.task_of(job)
        if task is not None:
            self._assign(task)

    def _is_follower(self, job: TuningJob) -> bool:
        task = self.task_of(job)
        return task is not None and task.follower == job.job_id

    def _apply_report(self, job: TuningJob, report: RunReport) -> None:
        if not self._is_follower(job):
            super()._apply_report(job, report)

    def _quiet_after_start_s(self, job: TuningJob) -> float:
        task = self.task_of(job)
        if task is None:
            return self.policy.profile_limit_s
        return math.inf if task.follower == job.job_id else self.remaining_s(task)

    def _started(self, job: TuningJob, samples_done: int) -> None:
        """Apply the start of a run, whose checkpoint may be older than the last evaluation. A job that starts
        at 0 without its partner keeps nothing of its merge."""
        task, before = self.task_of(job), job.iterations
        if task is None:
            return
        job.progress(samples_done)
        self.has_changed = self.has_changed or job.iterations < before
        if job.iterations > 0:
            return
        if before > 0:
            job.reset()
        if task.mode == "normal" and job.merge is not None and not job.merge.is_donor:
            job.merge = job.merge if job.starts_from else None

    def _progressed(self, job: TuningJob, samples_done: int) -> None:
        if job.stage != "profiling":
            super()._progressed(job, samples_done)

    def _why(
        self, job: TuningJob, cause: Cause, facts: Mapping[str, Fact] = NO_FACTS
    ) -> Why[TaskChangeReason]:
        return Why("job_over") if cause == "work_done" else super()._why(job, cause, facts)

    def _fail_run(self, job: TuningJob, report: RunFailed, backs_off: bool) -> None:
        task, source = self.task_of(job), job.starts_from
        if source is not None and job.iterations == 0:
            # Its adapter may be the cause, so the failure is not counted: the job begins again without it.
            self.library.drop(source.digest)
            job.merge = None
            self.return_to_queue(job, Why("run_failed", facts_of_failure(report)), report.node)
            self._note_ended_on(job, report.node)
            return
        if task is None or len(task.job_ids) == 1 or report.permanent:
            super()._fail_run(job, report, backs_off)
            return
        # The merge may be the cause, so the failure is counted for neither job: each continues alone.
        donor, receiver = self.jobs_of(task)
        assert task.mode != "normal"
        self.forecasts.bar(task.mode, donor, receiver)
        self.return_to_queue(job, Why("run_failed", facts_of_failure(report)), report.node)
        self._note_ended_on(job, report.node)

    def _forget_empty_merge(self, job: TuningJob) -> None:
        """Forget the merge of a job whose runs have ended without a step, and that has no partner in its
        task: it was never merged."""
        task = self.task_of(job)
        if job.merge is None or job.merge.place is not None or (task is not None and job.starts_from):
            return
        if job.iterations == 0 and not job.leaving and (task is None or len(task.job_ids) == 1):
            job.merge = None

    def _account(self, job: TuningJob, task: TuningTask) -> None:
        """Count the time that a job has had GPUs in its task."""
        held_s = self.time_s - task.since_s
        job.running_s += held_s
        job.attained_gpu_s += held_s * task.gpus / len(task.active_job_ids)
