"""The tasks of a zone: which jobs run together, on which GPUs, and the commands when that changes.

GPUs that a task gives up are free for others at once: a node obeys commands in their order, so that who comes
next starts when the last step of the one before is done. A job itself goes on only when its earlier run has
said that it ended, for then its checkpoint is there.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from schemas.facts import NO_FACTS, Fact
from schemas.fleet import RefusedRun, RunFailed, RunFinished
from schemas.merging.commands import (
    ProfileOrdered,
    TaskAssigned,
    TaskMember,
    TaskReleased,
    TaskReleaseReason,
    TransferMode,
)
from schemas.merging.outcomes import MergeForetold, TaskChanged, TaskChangeReason
from schemas.merging.settings import STAGES_PER_PIPELINE, MergingPolicy
from streams.cell.live_bytes import LiveBytes
from streams.cell.outcomes import Outcomes
from streams.policies.gang.room import JobsRoom
from streams.policies.gpus import Gpus
from streams.policies.merging.job import TuningJob
from streams.policies.merging.task import Task
from streams.policies.orders import OrderClock


class Tasks:
    """Tasks of one zone."""

    def __init__(
        self, zone: str, gpus: Gpus, live: LiveBytes, orders: OrderClock, outcomes: Outcomes
    ) -> None:
        self.zone = zone
        self._outcomes = outcomes
        self.gpus = gpus
        self.orders = orders
        self.jobs: dict[str, TuningJob] = {}
        """By id, in the order of their submission."""
        self.all: dict[str, Task] = {}
        """By id, in the order in which they came."""
        self.time_s = 0.0
        self.begun = 0
        """Tasks so far; their ids count on."""
        self.room = JobsRoom(live)
        self._unprofiled: dict[str, None] = {}
        """Jobs that wait for a profile run or are in one."""

    def add(self, job: TuningJob) -> None:
        """Keep a job."""
        self.jobs[job.job_id] = job
        self.recount(job)

    def restore(self, tasks: Iterable[Task]) -> None:
        """Keep tasks and what they and profile runs hold; the jobs are there."""
        for task in tasks:
            self.all[task.task_id] = task
            self.gpus.hold(task.task_id, task.members)
        for job in self.jobs.values():
            if job.stage == "profiling":
                self.gpus.hold(_profile_holder(job.job_id), job.profiled_on)
            self.recount(job)

    @property
    def waiting(self) -> int:
        """The number of jobs without a task."""
        return len(self.jobs) - sum(len(task.job_ids) for task in self.all.values())

    def unprofiled(self) -> list[TuningJob]:
        """Return the jobs that wait for a profile run or are in one, in the order of their arrival."""
        return sorted((self.jobs[job_id] for job_id in self._unprofiled), key=lambda job: job.arrival)

    def ready(self) -> list[TuningJob]:
        """Jobs that wait for GPUs and could use some, in the order of their arrival."""
        return [
            job
            for job in self.jobs.values()
            if job.stage == "ready" and job.task is None and self.may_run(job)
        ]

    def may_run(self, job: TuningJob) -> bool:
        """Whether a job does not wait after a run that did not begin."""
        return job.retry_s <= self.orders.elapsed_s

    def task_of(self, job: TuningJob) -> Task | None:
        """The task that a job is part of."""
        return None if job.task is None else self.all[job.task]

    def profile(self, job: TuningJob, policy: MergingPolicy) -> None:
        """Have a new job profiled, if there is room."""
        gpus = STAGES_PER_PIPELINE if job.workload.pipeline else 1
        members = self.gpus.take(_profile_holder(job.job_id), gpus, {})
        if members is None:
            return
        if len(members) > 1:  # a profile run is on one node
            self.gpus.give_back(_profile_holder(job.job_id), members)
            return
        (node,) = members
        self.begun += 1
        job.stage, job.run_id, job.profiled_on = "profiling", f"p{self.begun}/{job.job_id}", members
        job.hear(self.orders.elapsed_s, policy.profile_limit_s)
        self.recount(job)
        self._outcomes.add(
            ProfileOrdered(
                zone=self.zone,
                node=node,
                order=job.order(job.run_id),
                gpus=gpus,
                iterations=policy.profile_iterations,
                limit_s=policy.profile_limit_s,
                fisher_samples=policy.fisher_samples,
            )
        )

    def end_profile(self, job: TuningJob, stage: str) -> None:
        """A profile run is over."""
        self.gpus.give_back(_profile_holder(job.job_id), job.profiled_on)
        job.run_id, job.profiled_on = None, {}
        job.stage = "ready" if stage == "ready" else "new"
        job.waits_since_s = self.time_s
        self.recount(job)

    def abort_profile(self, job: TuningJob) -> None:
        """Have a profile run end, whose job is over."""
        (node,) = job.profiled_on
        run_id = cast(str, job.run_id)
        self.end_profile(job, "new")
        job.stopping[run_id] = node
        job.hear(self.orders.elapsed_s)
        self.recount(job)
        self._outcomes.add(
            TaskReleased(
                zone=self.zone,
                node=node,
                task_id=run_id.partition("/")[0],
                generation=1,
                job_ids=(job.job_id,),
                reason="withdrawn",
                runs=(RefusedRun(run_id=run_id, job_id=job.job_id),),
            )
        )

    def begin(
        self,
        mode: TransferMode,
        jobs: Sequence[TuningJob],
        gpus: int,
        reason: TaskChangeReason,
        remaining_s: float,
        watched_epochs: int,
        foretold: Sequence[MergeForetold] = (),
        before: Task | None = None,
    ) -> bool:
        """Set GPUs aside for jobs that have none, and have them run as soon as their earlier runs are over.

        Args:
            before: the task of the first job until now, whose nodes it likes best.

        Returns:
            whether enough GPUs are idle; otherwise nothing changes.
        """
        task_id = before.task_id if before is not None else f"t{self.begun + 1}"
        members = self.gpus.take(task_id, gpus, {} if before is None else before.members)
        if members is None:
            return False
        if before is None:
            self.begun += 1
        task = Task(
            task_id,
            mode,
            tuple(job.job_id for job in jobs),
            members,
            before.generation if before is not None else 0,
            since_s=self.time_s,
            watched_epochs=watched_epochs,
        )
        self.all[task_id] = task
        for job in jobs:
            job.task = task_id
        for job in jobs[: len(task.active_job_ids)]:
            job.waited_s += self.time_s - job.waits_since_s
        self._outcomes.add(
            self.changed(task, reason, 0 if before is None else before.gpus, remaining_s, foretold)
        )
        self.settle(task)
        for job in jobs:
            self.recount(job)
        return True

    def settle(self, task: Task) -> None:
        """Tell the nodes of a task to run it, once no earlier run of its jobs is left."""
        jobs = [self.jobs[job_id] for job_id in task.job_ids]
        if task.is_assigned or any(job.stopping for job in jobs):
            return
        task.generation = 1 + max(task.generation, *(job.generation for job in jobs))
        task.is_assigned, task.since_s = True, self.time_s
        for job in jobs:
            job.generation, job.run_id = task.generation, task.run_id(job.job_id)
            job.hear(self.orders.elapsed_s)
        members = tuple(TaskMember(node=node, gpus=gpus) for node, gpus in task.members.items())
        order = TaskAssigned(
            zone=self.zone,
            node=task.leader,
            task_id=task.task_id,
            generation=task.generation,
            mode=task.mode,
            orders=tuple(job.order(task.run_id(job.job_id)) for job in jobs),
            members=members,
            watched_epochs=task.watched_epochs,
        )
        self._outcomes.add(order)
        for member in members[1:]:
            self._outcomes.add(order.model_copy(update={"node": member.node}))

    def stop(
        self,
        task: Task,
        reason: TaskReleaseReason,
        about: Sequence[str] = (),
        without: Iterable[str] = (),
    ) -> None:
        """Take a task's GPUs away; its jobs wait, and the task is gone.

        Args:
            about: the jobs that the reason is about; all of the task if not given.
            without: nodes that are lost: what ran there is over.
        """
        lost = set(without)
        del self.all[task.task_id]
        self.gpus.give_back(task.task_id, task.members)
        for job_id in task.job_ids:
            self._leave(self.jobs[job_id], task, lost)
        if task.is_assigned:
            runs = tuple(
                RefusedRun(run_id=task.run_id(job_id), job_id=job_id) for job_id in task.active_job_ids
            )
            for node in task.members:
                self._outcomes.add(
                    TaskReleased(
                        zone=self.zone,
                        node=node,
                        task_id=task.task_id,
                        generation=task.generation,
                        job_ids=tuple(about) or task.job_ids,
                        reason=reason,
                        runs=runs,
                    )
                )

    def part(self, task: Task) -> None:
        """The jobs of a task that is gone are not to go on together: where the receiver of a temporal merge
        had not begun, or nobody has done a step yet, there was no merge."""
        for job_id in task.job_ids:
            if task.follower is not None:
                self.jobs[job_id].merge = None
            else:
                self._forget_empty_merge(self.jobs[job_id])

    def complete(self, job: TuningJob, report: RunFinished) -> None:
        """A job's work is done; whoever is in a task with it goes on there."""
        job.progress(report.samples_done)
        job.finished, job.given_up = report, None
        job.stopping.pop(report.run_id, None)
        task = self.task_of(job)
        if task is not None:
            self.drop(job, task)
        self.recount(job)

    def drop(self, job: TuningJob, task: Task) -> None:
        """A job is no part of its task any more, which goes on with the other or is over."""
        was_active = job.job_id in task.active_job_ids
        if was_active:
            self._account(job, task)
        task.job_ids = tuple(other for other in task.job_ids if other != job.job_id)
        job.task = job.run_id = None
        if not task.job_ids:
            del self.all[task.task_id]
            self.gpus.give_back(task.task_id, task.members)
        else:
            other = self.jobs[task.job_ids[0]]
            if was_active:
                if task.mode == "temporal":
                    other.waited_s += self.time_s - other.waits_since_s
                else:
                    self._account(other, task)
                task.since_s = self.time_s
            if not task.is_assigned:
                # Its nodes know nothing of the merge, and will not.
                if task.mode == "temporal":
                    other.merge = None
                task.mode = "normal"
        self.recount(job)

    def fail(self, job: TuningJob, report: RunFailed, backs_off: bool = False) -> None:
        """A run is over without its work; the job goes on in another, unless it can run nowhere.

        Args:
            backs_off: whether the job waits before it has another run.
        """
        job.fail(report, self.orders, backs_off)
        self.recount(job)

    def start(self, job: TuningJob, task: Task, samples_done: int) -> None:
        """A run of a job begins, from what is left of it: less than was evaluated where no checkpoint was
        written since. With nothing left, and without its partner, a job has learned nothing in its merge."""
        had_begun = job.iterations > 0
        job.progress(samples_done)
        if job.iterations > 0:
            return
        if had_begun:
            job.lose()
        if task.mode == "normal" and job.merge is not None and not job.merge.is_donor:
            job.merge = None

    def cleared(self, job: TuningJob, run_id: str) -> None:
        """A run that was told to end has done so."""
        job.stopping.pop(run_id, None)
        self._forget_empty_merge(job)
        self.recount(job)
        task = self.task_of(job)
        if task is not None:
            self.settle(task)

    def forget_if_over(self, job: TuningJob) -> bool:
        """Keep a job no longer that is ending and whose last run is over; return whether it was so."""
        is_over = job.is_ending and job.task is None and not job.stopping and job.job_id in self.jobs
        if is_over:
            del self.jobs[job.job_id]
            self.recount(job)
        return is_over

    def changed(
        self,
        task: Task,
        reason: TaskChangeReason,
        gpus_before: int,
        remaining_s: float,
        foretold: Sequence[MergeForetold] = (),
        facts: Mapping[str, Fact] = NO_FACTS,
    ) -> TaskChanged:
        """A task as it is now; without GPUs where it is gone."""
        is_there = task.task_id in self.all
        return TaskChanged(
            zone=self.zone,
            task_id=task.task_id,
            generation=task.generation,
            mode=task.mode,
            job_ids=task.job_ids,
            reason=reason,
            gpus_before=gpus_before,
            gpus=task.gpus if is_there else 0,
            members=tuple(TaskMember(node=node, gpus=gpus) for node, gpus in task.members.items())
            if is_there
            else (),
            remaining_s=remaining_s if is_there else 0.0,
            foretold=tuple(foretold),
            facts=dict(facts),
        )

    def _forget_empty_merge(self, job: TuningJob) -> None:
        """A job whose runs are over without a step, and that is with nobody, was never merged."""
        task = self.task_of(job)
        if job.iterations == 0 and not job.stopping and (task is None or len(task.job_ids) == 1):
            job.merge = None

    def _leave(self, job: TuningJob, task: Task, lost: set[str]) -> None:
        is_active = job.job_id in task.active_job_ids
        if is_active:
            self._account(job, task)
            if task.is_assigned and task.leader not in lost:
                job.stopping[task.run_id(job.job_id)] = task.leader
                job.hear(self.orders.elapsed_s)
            job.waits_since_s = self.time_s
            job.restarts += 1
        job.task = job.run_id = None
        self.recount(job)

    def _account(self, job: TuningJob, task: Task) -> None:
        """Count the time that a job has had GPUs."""
        held_s = self.time_s - task.since_s
        job.running_s += held_s
        job.attained_gpu_s += held_s * task.gpus / len(task.active_job_ids)

    def recount(self, job: TuningJob) -> None:
        """Count anew what a job takes of a snapshot, and whether it is profiled."""
        is_there = job.job_id in self.jobs
        task = self.task_of(job)
        if is_there:
            self.room.count(job, job.state_bytes + (0 if task is None else task.state_bytes))
        else:
            self.room.remove(job)
        if is_there and job.stage != "ready":
            self._unprofiled[job.job_id] = None
        else:
            self._unprofiled.pop(job.job_id, None)


def _profile_holder(job_id: str) -> str:
    return f"profile/{job_id}"
