"""The runs of a zone's jobs: profile runs begin, nodes report, and jobs and merges end."""

from collections.abc import Collection, Mapping
from typing import Any

from schemas.base import Outcome
from schemas.facts import NO_FACTS, Fact, Facts
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted
from schemas.merging.outcomes import ForetoldReason
from schemas.merging.reports import ProfileReported, TaskEvaluated
from schemas.merging.settings import STAGES_PER_PIPELINE
from streams.cell.outcomes import Outcomes
from streams.policies.ignored import no_such_run
from streams.policies.merging.asking import Asking
from streams.policies.merging.job import TuningJob
from streams.policies.merging.judging import (
    JudgedReason,
    fault_of_merge,
    judged,
    note_evaluation,
    shortfall_of_merge,
)
from streams.policies.merging.planning import Planning
from streams.policies.merging.standing import Standing
from streams.policies.merging.task import Task
from streams.policies.merging.turns import Turns
from streams.policies.orders import facts_of_failure


class Runs:
    """Runs of one zone."""

    def __init__(self, asking: Asking, planning: Planning, standing: Standing, outcomes: Outcomes) -> None:
        self._outcomes = outcomes
        self._asking = asking
        self._tasks = asking.tasks
        self._knowledge = asking.knowledge
        self._planning = planning
        self._standing = standing
        self.turns = Turns(asking.tasks)

    def profile(self) -> None:
        """Have new jobs profiled, one of each kind at a time. Users take turns, so that nobody waits for all
        that one of them has new."""
        unprofiled = self._tasks.unprofiled()
        busy = {job.kind for job in unprofiled if job.stage == "profiling"}
        new: list[TuningJob] = []
        for job in unprofiled:
            is_free = not job.is_ending and not job.stopping and self._tasks.may_run(job)
            if job.stage == "new" and job.kind not in busy and is_free:
                busy.add(job.kind)
                new.append(job)
        while new:
            job = min(new, key=lambda job: self.turns.of(job.job.user))
            new.remove(job)
            if not self._tasks.gpus.idle() or job.workload.pipeline:
                self._make_room(job)
            if not self._tasks.gpus.idle():
                return
            self._tasks.profile(job, self._asking.policy)
            if job.stage == "profiling":
                self.turns.give(job.job.user)

    def reported(self, job: TuningJob, report: RunReport) -> None:
        """A node reports about a run of a job."""
        if job.stopping.get(report.run_id) == report.node:
            self._ending(job, report)
            return
        task = self._tasks.task_of(job)
        is_its_node = report.node in job.profiled_on if task is None else report.node == task.leader
        if job.run_id != report.run_id or not is_its_node:
            self._outcomes.add(no_such_run(report))
        elif task is None:
            self._profiling(job, report)
        else:
            self._running(job, task, report)

    def refused(self, job: TuningJob, failed: RunFailed) -> None:
        """A node does not begin its part of a run."""
        if job.stopping.get(failed.run_id) == failed.node:
            # Its task has ended, perhaps by the refusal of another node, or of its partner's run.
            self._ended(job, failed.run_id)
            return
        task = self._tasks.task_of(job)
        nodes = job.profiled_on if task is None else task.members
        if job.run_id != failed.run_id or failed.node not in nodes:
            self._outcomes.add(no_such_run(failed))
        else:
            self._not_begun(job, task, failed)

    def give_up_silent(self) -> None:
        """Take runs for failed, or for ended where they were told to end, of which nothing is heard."""
        orders = self._tasks.orders
        for job in list(self._tasks.jobs.values()):
            if job.job_id not in self._tasks.jobs or not orders.is_lost(job.heard_s, job.quiet_s):
                continue
            for run_id in list(job.stopping):
                if run_id in job.stopping:
                    self._ended(job, run_id)
            task = self._tasks.task_of(job)
            if job.run_id is None or (task is not None and job.job_id not in task.active_job_ids):
                continue
            node = next(iter(job.profiled_on)) if task is None else task.leader
            failed = orders.failure(job.job, job.run_id, node, job.heard_s)
            self._not_begun(job, task, failed)

    def let_go(self, job: TuningJob) -> None:
        """A user withdraws a job: it ends wherever it is."""
        task = self._tasks.task_of(job)
        if task is not None:
            self._tasks.stop(task, "withdrawn", about=(job.job_id,))
            self._outcomes.add(self._changed(task, "withdrawn", task.gpus))
            self._tasks.part(task)
        elif job.stage == "profiling":
            self._tasks.abort_profile(job)
        self._planning.has_changed = True
        self._settle(job)

    def lose(self, node: str, why: Mapping[str, Fact], held: Collection[str] = ()) -> None:
        """End the runs of a node, and what is left of them elsewhere.

        Args:
            held: the runs that the node continues all the same.
        """
        for job in list(self._tasks.jobs.values()):
            for run_id in [run for run, leader in job.stopping.items() if leader == node and run not in held]:
                self._tasks.cleared(job, run_id)
                self._settle(job)
            if node in job.profiled_on and job.run_id not in held:
                self._tasks.end_profile(job, "new")
        for task in [task for task in self._tasks.all.values() if node in task.members]:
            if any(self._tasks.jobs[job_id].run_id in held for job_id in task.job_ids):
                continue
            self._tasks.stop(task, "node_lost", without=(node,))
            self._tasks.part(task)
            self._outcomes.add(self._changed(task, "node_lost", task.gpus, why))

    def vacate(self, node: str, why: Mapping[str, Fact]) -> None:
        """Have the tasks of a node go elsewhere."""
        for task in [task for task in self._tasks.all.values() if node in task.members]:
            self._tasks.stop(task, "reallocated")
            self._tasks.part(task)
            self._outcomes.add(self._changed(task, "preempted", task.gpus, why))
        self._planning.has_changed = True

    def _make_room(self, job: TuningJob) -> None:
        """Vacate a node for the profile run of a job that has found none for an interval, if no other such
        run is under way: of a pipeline-parallel one, since plans hardly leave as many GPUs idle on one node;
        of others only where there are so few GPUs that plans leave none."""
        is_pipeline = job.workload.pipeline
        if not is_pipeline and self._asking.most_for_profiles:
            return
        if self._tasks.time_s - job.waits_since_s < self._asking.policy.interval_s:
            return
        if any(
            other.stage == "profiling" and other.workload.pipeline == is_pipeline
            for other in self._tasks.jobs.values()
        ):
            return
        needed = STAGES_PER_PIPELINE if is_pipeline else 1
        room = {
            node: idle + sum(task.members.get(node, 0) for task in self._tasks.all.values())
            for node, idle in self._tasks.gpus.free().items()
        }
        fitting = [node for node, gpus in room.items() if gpus >= needed]
        if fitting:
            idle = self._tasks.gpus.free()
            node = max(fitting, key=lambda node: idle[node])
            if idle[node] < needed:
                self.vacate(node, {"case": "profile_run", "job_id": job.job_id, "node": node})

    def _not_begun(self, job: TuningJob, task: Task | None, failed: RunFailed) -> None:
        """A node does not have a run that it was to have."""
        if task is None:
            self._profiling(job, failed, backs_off=True)
        else:
            self._failed(job, task, failed, backs_off=True)

    def _profiling(self, job: TuningJob, report: RunReport, backs_off: bool = False) -> None:
        """A report about a job's profile run."""
        job.heard_s = self._tasks.orders.elapsed_s
        match report:
            case ProfileReported():
                fault = self._knowledge.profiled(job.kind, report)
                for step in report.steps:
                    self._asking.speeds.observe(self._knowledge.kinds[job.kind], step)
                self._tasks.end_profile(job, "ready")
                reason: ForetoldReason = "profiled" if fault is None else "unusable_profile"
                self._outcomes.add(self._asking.foretold(job, reason, fault or NO_FACTS))
                self._all_ready(job.kind)
                self._planning.knows_more = True
            case RunFailed():
                self._tasks.fail(job, report, backs_off)
                self._tasks.end_profile(job, "new")
                if job.is_ending and not report.permanent:
                    # Its data may be sound, and only the profile run not: it runs unmerged.
                    job.given_up, job.failures, job.stage, job.never_merges = None, 0, "ready", True
                    self._tasks.recount(job)
                    self._outcomes.add(self._asking.foretold(job, "profile_failed", facts_of_failure(report)))
                self._settle(job)
            case RunProgressed(complete=True) | RunFinished():
                self._tasks.end_profile(job, "new")
            case _:
                return
        self._planning.has_changed = True
        self.profile()

    def _all_ready(self, kind: str) -> None:
        """Jobs of a kind that was profiled need no profile run."""
        known = self._knowledge.kinds[kind]
        for job in self._tasks.jobs.values():
            if job.kind == kind and not job.is_ending and job.stage == "ready":
                job.never_merges = job.never_merges or not known.is_usable
            if job.kind == kind and job.stage == "new":
                job.stage, job.never_merges = "ready", not known.is_usable
                self._tasks.recount(job)
                self._outcomes.add(self._asking.foretold(job, "kind_known"))

    def _running(self, job: TuningJob, task: Task, report: RunReport) -> None:
        """A report about a job's run in its task."""
        job.heard_s = self._tasks.orders.elapsed_s
        match report:
            case TaskEvaluated():
                self._evaluated(job, task, report)
            case RunStarted():
                before = job.iterations
                self._tasks.start(job, task, report.samples_done)
                self._hear_until_done(job, task)
                if job.iterations < before:
                    self._planning.has_changed = True
            case RunProgressed(complete=False):
                job.progress(report.samples_done)
                job.quiet_s = 0.0  # its node says now and then how far it is
            case RunFinished():
                self._complete(job, report)
            case RunFailed():
                self._failed(job, task, report)
            case RunProgressed(complete=True):
                job.progress(report.samples_done)
                ended: Facts = {"case": "ended", "node": report.node}
                self._break_up(task, job, "run_failed", ended)

    def _hear_until_done(self, job: TuningJob, task: Task) -> None:
        """A run of a job begins, of which no report may come before the work of its task is done."""
        remaining_s = self._asking.remaining_s(task.job_ids, task.mode, task.gpus)
        job.hear(self._tasks.orders.elapsed_s, remaining_s)

    def _failed(self, job: TuningJob, task: Task, report: RunFailed, backs_off: bool = False) -> None:
        """A job's run in its task has failed on a node, which need not be the one that reports for all."""
        if len(task.job_ids) == 1 or report.permanent:
            self._tasks.fail(job, report, backs_off)
        else:
            # It may be for the merge, so that neither job is at fault: each goes on alone.
            for each in task.job_ids:
                self._tasks.jobs[each].never_merges = True
        self._break_up(task, job, "run_failed", facts_of_failure(report), report.node)

    def _ending(self, job: TuningJob, report: RunReport) -> None:
        """A report about a run that was told to end."""
        match report:
            case RunFinished() if job.given_up is None:
                if job.is_undone:
                    job.merge = None  # it was done before it could begin anew in one
                self._complete(job, report)
                return
            case RunProgressed(complete=False):
                return  # it will say what is left of it
            case RunProgressed() | RunFinished():
                # A node that stopped before it heard that the merge is undone has kept its weights.
                if not job.is_ending and not job.is_undone:
                    job.progress(report.samples_done)
            case RunFailed() if not job.is_ending:
                self._tasks.fail(job, report)
            case RunFailed() | ProfileReported():
                pass
            case _:
                return
        self._ended(job, report.run_id)

    def _ended(self, job: TuningJob, run_id: str) -> None:
        """A run that was told to end is over."""
        self._tasks.cleared(job, run_id)
        task = self._tasks.task_of(job)
        if job.is_ending and task is not None:
            self._break_up(task, job, "run_failed", job.given_up or NO_FACTS)
        self._settle(job)
        self._planning.has_changed = True
        self.profile()

    def _evaluated(self, job: TuningJob, task: Task, report: TaskEvaluated) -> None:
        kind = self._knowledge.kinds[job.kind]
        compares = note_evaluation(job, kind, task, report)
        if report.phase == "own":
            batch = job.workload.hyperparameters.batch_size
            job.progress(max(job.job.samples_done, report.iterations * batch))
        if report.step is not None and len(task.active_job_ids) == 1:
            self._asking.speeds.observe(kind, report.step)
        fault = fault_of_merge(job, kind, task, report, compares)
        if fault is None:
            return
        jobs = [self._tasks.jobs[job_id] for job_id in task.job_ids]
        # A donor was trained as if it were alone.
        learners = [each for each in jobs if each.merge is not None and not each.merge.is_donor]
        self._tasks.stop(task, "undone", about=[each.job_id for each in learners])
        self._outcomes.add(self._changed(task, "undone", task.gpus, fault))
        for each in jobs:
            each.never_merges = True
            # Of two that learn from each other, the other may gain: nothing is learned of it.
            self._judge(each, "undone", learns=each is job)
            if each in learners:
                each.undo()
            each.merge = None
        self._planning.has_changed = True

    def _complete(self, job: TuningJob, report: RunFinished) -> None:
        """A job is done; another of its task goes on with the GPUs."""
        iterations = report.samples_done // job.workload.hyperparameters.batch_size
        shortfall = shortfall_of_merge(job, self._knowledge.kinds[job.kind], iterations)
        if shortfall is not None:
            self._begin_anew(job, report, shortfall)
            return
        task = self._tasks.task_of(job)
        self._tasks.complete(job, report)
        if task is not None and task.job_ids:
            for other in task.active_job_ids if task.mode == "temporal" else ():
                self._hear_until_done(self._tasks.jobs[other], task)
            self._outcomes.add(self._changed(task, "job_over"))
            self._tasks.settle(task)
        self._settle(job)
        self._planning.has_changed = True
        self.profile()

    def _begin_anew(self, job: TuningJob, report: RunFinished, shortfall: Mapping[str, Fact]) -> None:
        """A job has nothing left to do in a merge that has kept it from its target."""
        job.progress(report.samples_done)
        job.never_merges = True
        task = self._tasks.task_of(job)
        if task is not None:
            self._break_up(task, job, "undone", shortfall)
        self._judge(job, "undone")
        job.undo()
        job.merge = None
        self._tasks.cleared(job, report.run_id)
        self._planning.has_changed = True

    def _break_up(
        self, task: Task, job: TuningJob, reason: Any, facts: Mapping[str, Fact], node: str | None = None
    ) -> None:
        """A task ends because of one of its jobs, whose run is over already; the other waits for GPUs.

        Args:
            node: where the run is over. Its leader still says when it has ended it, if that is another one;
                None where it is over everywhere.
        """
        gpus, run_id = task.gpus, job.run_id
        if job.is_ending:
            self._tasks.stop(task, "failed", about=(job.job_id,))
        else:
            self._tasks.stop(task, "reallocated")
        if run_id is not None and node in (None, task.leader):
            job.stopping.pop(run_id, None)
            self._tasks.recount(job)
        self._tasks.part(task)
        self._outcomes.add(self._changed(task, reason, gpus, facts))
        self._settle(job)
        self._planning.has_changed = True
        self.profile()

    def _settle(self, job: TuningJob) -> None:
        """End a job that is ending, and learn from it."""
        if not self._tasks.forget_if_over(job):
            return
        if job.merge is not None:
            self._judge(job, "finished" if job.finished is not None else "ended_early")
        is_alone = (job.merge is None or job.merge.is_donor) and not job.is_undone
        if job.finished is not None and is_alone and job.iterations > 0:
            kind = self._knowledge.kinds[job.kind]
            if kind.expected_iterations is not None:
                self._standing.note_alone(kind.expected_iterations, job.iterations)
            kind.note_finished(job.iterations, job.best_accuracy)
            self._planning.knows_more = True
        if job.finished is not None:
            self._knowledge.note_trained(job.iterations * job.workload.hyperparameters.batch_size)
        self._knowledge.leave(job.kind)
        if not self._tasks.jobs:
            self._planning.hold(None)
            self.turns.forget()
        self._outcomes.add(job.ended(self._tasks.zone))

    def _judge(self, job: TuningJob, reason: JudgedReason, learns: bool = True) -> None:
        merge = job.merge
        if merge is None or merge.is_donor:
            return
        told, remembered = judged(self._asking, job, merge, reason)
        self._standing.note(told)
        if reason == "undone":
            self._knowledge.note_lost(job.iterations * job.workload.hyperparameters.batch_size)
        if learns:
            self._knowledge.learn(remembered)
            self._planning.knows_more = True
        self._outcomes.add(told)

    def _changed(
        self, task: Task, reason: Any, gpus_before: int | None = None, facts: Mapping[str, Fact] = NO_FACTS
    ) -> Outcome:
        is_there = task.task_id in self._tasks.all
        remaining_s = self._asking.remaining_s(task.job_ids, task.mode, task.gpus) if is_there else 0.0
        before = task.gpus if gpus_before is None else gpus_before
        return self._tasks.changed(task, reason, before, remaining_s, facts=facts)
