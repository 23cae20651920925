"""The runs of a zone's jobs: start of profile runs, effects of reports, and results of merges."""

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.facts import NO_FACTS, Fact
from schemas.fleet import RunFailed, RunFinished, RunReport
from schemas.merging.estimates import EstimateSolution
from schemas.merging.outcomes import ForecastReason
from schemas.merging.reports import TaskEvaluated, TaskProfiled
from schemas.merging.settings import STAGES_PER_PIPELINE
from streams.policies.gang.gangs import Why
from streams.policies.gang.generation import generation_of
from streams.policies.gang.turns import UserTurns
from streams.policies.gpus import Gpus
from streams.policies.merging.duration_forecasts import Forecasts
from streams.policies.merging.knowledge import Knowledge
from streams.policies.merging.merge_results import (
    MergeEnd,
    fault_of_merge,
    merge_result,
    note_evaluation,
    shortfall_of_merge,
)
from streams.policies.merging.speeds import Speeds
from streams.policies.merging.tasks import Tasks
from streams.policies.merging.tuning_job import TuningJob
from streams.policies.orders import facts_of_failure
from streams.policies.policy import ZoneContext


class MergingRuns(Tasks):
    """Tasks of one zone, with profile runs and the results of their reports."""

    def __init__(self, context: ZoneContext, gpus: Gpus, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self.speeds = Speeds(context.profiles)
        super().__init__(context, gpus, Forecasts(context.zone.id, knowledge, self.speeds))
        self.turns = UserTurns()
        """Turns of the users, by which the next job to be profiled is chosen."""

    def profile_all(self) -> None:
        """Begin profile runs of new jobs, one of each kind at a time. Users take turns, so that no user waits
        for all new jobs of another."""
        unprofiled = self.unprofiled()
        busy = {job.kind for job in unprofiled if job.stage == "profiling"}
        new: list[TuningJob] = []
        for job in unprofiled:
            is_free = not job.is_ending and not job.leaving and self.may_run(job)
            if job.stage == "new" and job.kind not in busy and is_free:
                busy.add(job.kind)
                new.append(job)
        while new:
            job = min(new, key=lambda job: self.turns.number(job.job.user))
            new.remove(job)
            if not self.gpus.idle() or job.workload.pipeline:
                self._make_room(job)
            if not self.gpus.idle():
                return
            self.profile(job)
            if job.stage == "profiling":
                self._give_turn(job.job.user)

    def restore_turns(self, state: Sequence[Any]) -> None:
        """Set the state of the users' turns."""
        self.turns.restore(state)
        self.room.add(self.turns.state_bytes)

    def _give_turn(self, user: str) -> None:
        before_bytes = self.turns.state_bytes
        self.turns.keep({job.job.user for job in self.jobs.values()})
        self.turns.give_turn(user)
        self.room.add(self.turns.state_bytes - before_bytes)

    def _make_room(self, job: TuningJob) -> None:
        """Evict the tasks of a node for the profile run of a job that has waited for an interval, if no other
        such run is under way. Pipeline-parallel jobs need it, since plans rarely leave enough GPUs idle on
        one node; other jobs need it only if the zone is so small that plans leave no GPUs for profiles."""
        is_pipeline = job.workload.pipeline
        if not is_pipeline and self.most_for_profiles:
            return
        if self.time_s - job.waits_since_s < self.policy.interval_s:
            return
        if any(
            other.stage == "profiling" and other.workload.pipeline == is_pipeline
            for other in self.jobs.values()
        ):
            return
        needed, idle = STAGES_PER_PIPELINE if is_pipeline else 1, self.gpus.free()
        room = {
            node: count + sum(task.members.get(node, 0) for task in self.all.values())
            for node, count in idle.items()
        }
        fitting = [node for node, count in room.items() if count >= needed]
        if fitting:
            node = max(fitting, key=lambda node: idle[node])
            if idle[node] < needed:
                self.evict(node, {"case": "profile_run", "job_id": job.job_id, "node": node})

    def apply_estimates(self, solution: EstimateSolution) -> None:
        """Apply a solver's estimates to the jobs of their kinds."""
        news = self._knowledge.keep_estimates(solution)
        for job in self.jobs.values():
            if job.stage != "ready" or job.is_ending or job.kind not in news:
                continue
            fault = news[job.kind]
            job.never_merges = job.never_merges or bool(fault)
            self._outcomes.add(
                self.forecasts.decision(job, "unusable_profile" if fault else "estimated", fault)
            )
        self.has_changed = True

    # Reports

    def _report_of_member(self, job: TuningJob, report: RunReport, backs_off: bool) -> None:
        match report:
            case TaskProfiled():
                if job.stage == "profiling":
                    self._profiled(job, report)
            case TaskEvaluated():
                if job.stage == "ready":
                    self._apply_report(job, report)
                    self._evaluated(job, report)
            case _:
                super()._report_of_member(job, report, backs_off)

    def _profiled(self, job: TuningJob, report: TaskProfiled) -> None:
        fault = self._knowledge.profiled(job.kind, report)
        kind = self._knowledge.kinds[job.kind]
        self.speeds.profiled(kind, job.workload, job.job.user, report.steps, report.memory_gib)
        job.stage = "ready"
        self.end_profile(job)
        reason: ForecastReason = "profiled" if fault is None else "unusable_profile"
        self._outcomes.add(self.forecasts.decision(job, reason, fault or NO_FACTS))
        self._all_ready(job.kind)
        self.has_changed = True

    def _all_ready(self, kind: str) -> None:
        """Note that the other jobs of a kind need no profile run."""
        known = self._knowledge.kinds[kind]
        for job in self.jobs.values():
            if job.kind == kind and not job.is_ending and job.stage == "ready":
                job.never_merges = job.never_merges or not known.is_usable
            if job.kind == kind and job.stage == "new":
                job.stage, job.never_merges = "ready", not known.is_usable
                self.note(job)
                self._outcomes.add(self.forecasts.decision(job, "kind_known"))

    def _fail_run(self, job: TuningJob, report: RunFailed, backs_off: bool) -> None:
        was_profiling = job.stage == "profiling"
        super()._fail_run(job, report, backs_off)
        if was_profiling and job.stage == "ready":
            self._outcomes.add(self.forecasts.decision(job, "profile_failed", facts_of_failure(report)))

    def _evaluated(self, job: TuningJob, report: TaskEvaluated) -> None:
        kind, task = self._knowledge.kinds[job.kind], self.task_of(job)
        assert task is not None, f"job {job.job_id} has a member, and no profile run"
        compares = note_evaluation(job, kind, task, report)
        if report.phase == "own":
            batch = job.workload.hyperparameters.batch_size
            job.progress(max(job.job.samples_done, report.iterations * batch))
        if report.step is not None and len(task.active_job_ids) == 1:
            self.speeds.observe(kind, job.workload, job.job.user, report.step)
        fault = fault_of_merge(job, kind, task, report, compares)
        if fault is None:
            return
        jobs = self.jobs_of(task)
        # A donor is trained as if it were alone.
        learners = [each for each in jobs if each.merge is not None and not each.merge.is_donor]
        self.stop(task, "undone", [each.job_id for each in learners])
        self.changed(task, "undone", fault)
        for each in jobs:
            each.never_merges = True
            # In a spatial merge, the partner may gain: its result is not kept.
            compared = kind.accuracy_when_watched if each is job and compares else None
            self._report_merge(each, "undone", compared, learns=each is job)
            if each in learners:
                each.discard_progress()
            each.merge = None
        self.has_changed = True

    def _complete(self, job: TuningJob, report: RunFinished) -> None:
        iterations = report.samples_done // job.workload.hyperparameters.batch_size
        if job.is_undone:
            job.merge = None  # it was done before it was restarted
        shortfall = shortfall_of_merge(job, self._knowledge.kinds[job.kind], iterations)
        if shortfall is None:
            super()._complete(job, report)
        else:
            self._restart_alone(job, report, shortfall)

    def _restart_alone(self, job: TuningJob, report: RunFinished, shortfall: Mapping[str, Fact]) -> None:
        """Restart a job alone that is done, and whose merge kept it from its target."""
        job.progress(report.samples_done)
        job.never_merges = True
        self.return_to_queue(job, Why("undone", shortfall), report.node)
        self._report_merge(job, "undone", self._knowledge.kinds[job.kind].accuracy_at_end)
        job.discard_progress()
        job.merge = None
        generation = generation_of(report.run_id)
        if report.node in job.leaving and job.leaving[report.node].generation == generation:
            self._note_ended_on(job, report.node)

    # Ends

    def _release_ended(self, job: TuningJob) -> None:
        """Keep the results of a job that is over."""
        if job.finished is not None:
            self._report_merge(job, "finished", self._knowledge.kinds[job.kind].accuracy_at_end)
        else:
            self._report_merge(job, "ended_early", None)
        is_alone = (job.merge is None or job.merge.is_donor) and not job.is_undone
        if job.finished is not None and is_alone and job.iterations > 0:
            self._knowledge.note_finished(job)
        self.library.keep(job)
        if job.finished is not None:
            self._knowledge.note_trained(job.iterations * job.workload.hyperparameters.batch_size)
        self._knowledge.leave(job.kind)
        if not self.jobs:
            self.room.add(-self.turns.state_bytes)
            self.turns.keep(())

    def _report_merge(
        self, job: TuningJob, reason: MergeEnd, accuracy_alone: float | None, learns: bool = True
    ) -> None:
        merge = job.merge
        if merge is None or merge.is_donor:
            return
        kind = self._knowledge.kinds[job.kind]
        step_s = self.forecasts.step_s(job, 1)
        decision, past = merge_result(self.zone, job, merge, kind, step_s, reason, accuracy_alone)
        if reason == "undone":
            self._knowledge.note_lost(job.iterations * job.workload.hyperparameters.batch_size)
        if learns:
            self._knowledge.add_outcome(past)
        self._outcomes.add(decision)
