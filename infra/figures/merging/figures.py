"""Figures of a merging zone: GPUs, merges, the time that they saved, and the measures of Ymir (section 7)."""

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any

from infra.figures.distribution import Distribution
from infra.figures.jobs import Jobs
from infra.figures.merging.evaluation import Fairness, MergingEvaluation
from infra.figures.merging.jobs import PresentProfileRun, TuningTimeline, active
from infra.figures.merging.merges import Merge
from infra.figures.nodes import Nodes
from infra.figures.zone import Table, ZoneFigures
from schemas.base import Event, Outcome
from schemas.cells import CellConfigured
from schemas.decisions import JobOutcome, NodeStatusChanged
from schemas.fleet import RunFinished
from schemas.jobs import JobSubmitted
from schemas.merging.commands import ProfileOrdered, TaskAssigned, TaskReleased
from schemas.merging.outcomes import JobForetold, MergeEvaluated, TaskChanged
from schemas.merging.problems import MergeProblem, RivalProblem, StepTime
from schemas.merging.reports import TaskEvaluated
from schemas.merging.workload import TuningWorkload
from schemas.solves import SolveRequested
from solvers.merging.errors import GainErrors, IterationErrors
from solvers.merging.fairness import finish_time_fairness


class MergingFigures(ZoneFigures[TuningTimeline]):
    """Figures of one merging zone. Counts, sums and errors are of all jobs; distributions, shares and
    fairness of those that are kept."""

    JOB = TuningTimeline

    def __init__(self, cell: CellConfigured, zone: str, jobs: Jobs, nodes: Nodes) -> None:
        super().__init__(cell, zone, jobs, nodes)
        self.now_s = cell.epoch_s
        own = next(each for each in cell.zones if each.id == zone)
        self._gpus = sum(own.gpus_by_node.values())
        """GPUs of the zone at its start, by which fairness goes."""
        self._undone_merges = 0
        self._profile_gpu_s = 0.0
        self._first_s: float | None = None
        """Time of the first submission."""
        self._last_s: float | None = None
        """Time of the last end."""
        self._tasks: dict[str, TaskChanged] = {}
        """Tasks with GPUs, by id."""
        self.evaluated: Counter[str] = Counter()
        """Number of verdicts on merged jobs, by reason."""
        self.starts = 0
        """Number of starts of tasks with other jobs or GPUs."""
        self.merges = 0
        """Number of merges."""
        self._verdicts: deque[MergeEvaluated] = deque()
        """Latest verdicts."""
        self._saved_before_s = 0.0
        """Savings by the verdicts before these."""
        self._gain_errors = GainErrors()
        self._alone_errors, self._merged_errors = IterationErrors(), IterationErrors()

    @property
    def profiling(self) -> int:
        """Number of jobs in a profile run."""
        return sum(job.profile_run is not None for job in self.admitted())

    @property
    def running(self) -> int:
        """Number of jobs in training; the receiver of a temporal merge waits for its donor."""
        return sum(len(active(task)) for task in self._tasks.values())

    @property
    def waiting(self) -> int:
        """Number of other jobs that are not over."""
        return sum(1 for _ in self.admitted()) - self.profiling - self.running

    @property
    def gpus(self) -> int:
        """Number of GPUs of the zone's present nodes."""
        return self._nodes.gpus(self._zone)

    @property
    def used_gpus(self) -> int:
        """Number of GPUs in use by tasks and profile runs."""
        profiles = (job.profile_run for job in self.admitted())
        return sum(task.gpus for task in self._tasks.values()) + sum(run.gpus for run in profiles if run)

    @property
    def undone(self) -> int:
        """Number of jobs whose merge was undone."""
        return self.evaluated["undone"]

    @property
    def saved_s(self) -> float:
        """Time with one GPU that all ended merges saved (s)."""
        return math.fsum((self._saved_before_s, *(verdict.saved_s for verdict in self._verdicts)))

    def fold_event(self, time_s: float, event: Event) -> None:
        """Fold an event of the cell."""
        self.now_s = time_s
        match event:
            case JobSubmitted(zone=self._zone, workload=TuningWorkload()):
                self._first_s = time_s if self._first_s is None else self._first_s
            case RunFinished() if self._job(event.job_id) is not None:
                self._last_s = time_s
            case TaskEvaluated(phase="own") if (job := self._job(event.job_id)) is not None:
                job.accuracy = max(job.accuracy or 0.0, event.accuracy)

    def fold_outcome(self, time_s: float, outcome: Outcome) -> None:
        """Fold a decision of the cell."""
        self.now_s = max(self.now_s, time_s)
        match outcome:
            case ProfileOrdered() if (job := self._job(outcome.order.job_id)) is not None:
                self._end_profile(time_s, job)
                job.profile_run = PresentProfileRun(outcome.node, outcome.gpus, time_s)
            case JobForetold(zone=self._zone) if (job := self._job(outcome.job_id)) is not None:
                self._end_profile(time_s, job)
                job.forecast = outcome
            case SolveRequested(zone=self._zone, has_problem=True):
                self._note_steps(outcome)
            case TaskChanged(zone=self._zone):
                self._change(time_s, outcome)
            case TaskAssigned(zone=self._zone):
                self.starts += outcome.node == outcome.members[0].node
            case TaskReleased(zone=self._zone):
                self._clear(time_s, outcome.task_id)
            case MergeEvaluated(zone=self._zone):
                self._add_verdict(outcome)
            case NodeStatusChanged(status="down"):
                self._lose(time_s, outcome.node)
            case JobOutcome(zone=self._zone, is_of_another_job=False):
                if (job := self._job(outcome.job_id)) is not None and job.is_over:
                    self._end(time_s, job)

    def evaluation(self) -> MergingEvaluation:
        """Return the figures so far."""
        done = [job for job in self.kept() if job.state == "completed"]
        rho = list(self._fairness().values())
        makespan_s = 0.0 if self._first_s is None or self._last_s is None else self._last_s - self._first_s
        return MergingEvaluation(
            jobs=self.submitted,
            completed=self.completed,
            jct=Distribution.of([job.jct_s for job in done if job.jct_s is not None]),
            makespan_s=makespan_s,
            temporal_share=_share(done, "temporal"),
            spatial_share=_share(done, "spatial"),
            merges_undone=self._undone_merges,
            saved_s=self.saved_s,
            profile_gpu_s=self._profile_gpu_s,
            preemptions=self.totals()["preemptions"],
            gain=self._gain_errors.figures(),
            iterations_alone=self._alone_errors.figures(),
            iterations_merged=self._merged_errors.figures(),
            fairness=Fairness(math.fsum(rho) / len(rho), max(rho), sum(each > 1 for each in rho) / len(rho))
            if rho
            else None,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the state and the measures."""
        return {
            "jobs_profiling": self.profiling,
            "jobs_running": self.running,
            "jobs_waiting": self.waiting,
            "used_gpus": self.used_gpus,
            "gpus": self.gpus,
            "temporal_merges": len(self.merged_tasks("temporal")),
            "spatial_merges": len(self.merged_tasks("spatial")),
            "merged_jobs_finished": self.evaluated["finished"],
            "merged_jobs_undone": self.evaluated["undone"],
            **self.evaluation().as_json(),
        }

    def tables(self) -> Mapping[str, Table]:
        """Return `jobs`, a row per job in order of submission, and `merges`, a row per merged job whose merge
        is over."""
        rho = self._fairness()
        merges = [
            {
                "mode": verdict.mode,
                "job_id": verdict.job_id,
                "partner": verdict.partner,
                "dataset": self._dataset(verdict.job_id),
                "partner_dataset": self._dataset(verdict.partner),
                "reason": verdict.reason,
                "foretold_gain": verdict.foretold_gain,
                "gain": verdict.gain,
                "foretold_iterations": verdict.foretold_iterations,
                "iterations": verdict.iterations,
                "iterations_alone": verdict.iterations_alone,
                "saved_s": verdict.saved_s,
            }
            for verdict in self._verdicts
        ]
        return {
            "jobs": [
                job.as_row(job.workload, rho.get(job.job_id))
                for job in self.kept()
                if job.workload is not None
            ],
            "merges": merges,
        }

    def merged_tasks(self, mode: str | None = None) -> list[TaskChanged]:
        """Return the tasks of two jobs that have GPUs; only those of a mode, if given."""
        merged = [task for task in self._tasks.values() if len(task.job_ids) > 1]
        return merged if mode is None else [task for task in merged if task.mode == mode]

    def used_gpus_of(self, node: str) -> int:
        """Return the number of a node's GPUs in use by tasks and profile runs."""
        members = (member for task in self._tasks.values() for member in task.members)
        used = sum(member.gpus for member in members if member.node == node)
        profiles = (job.profile_run for job in self.admitted())
        return used + sum(run.gpus for run in profiles if run is not None and run.node == node)

    def _change(self, time_s: float, change: TaskChanged) -> None:
        self._clear(time_s, change.task_id)
        jobs = [job for job_id in change.job_ids if (job := self._job(job_id)) is not None]
        begun = Merge.of(change)
        if begun is not None:
            self.merges += 1
        else:
            for merge in {id(job.merge): job.merge for job in jobs if job.merge is not None}.values():
                merge.change(change)
        if change.gpus:
            self._tasks[change.task_id] = change
        for job in jobs:
            job.task = change if change.gpus else None
            job.change(time_s, change, begun)

    def _clear(self, time_s: float, task_id: str) -> None:
        """Remove a task that has ended or changes."""
        before = self._tasks.pop(task_id, None)
        for job_id in () if before is None else before.job_ids:
            job = self._job(job_id)
            if job is not None and job.task is before and not job.is_over:
                job.task = None
                job.wait(time_s)

    def _add_verdict(self, verdict: MergeEvaluated) -> None:
        job = self._job(verdict.job_id)
        if job is not None and verdict.reason == "undone":
            job.accuracy = None
        if job is not None and job.merge is not None:
            was_undone = job.merge.is_undone
            job.merge.evaluated[verdict.job_id] = verdict
            self._undone_merges += job.merge.is_undone and not was_undone
        self.evaluated[verdict.reason] += 1
        self._verdicts.append(verdict)
        while self._jobs.kept is not None and len(self._verdicts) > self._jobs.kept:
            self._saved_before_s += self._verdicts.popleft().saved_s
        if verdict.reason != "finished":
            return
        if verdict.gain is not None and verdict.gain > -1:
            self._gain_errors.add(verdict.foretold_gain, verdict.gain)
        if verdict.iterations > 0:
            self._merged_errors.add(verdict.foretold_iterations, verdict.iterations)

    def _lose(self, time_s: float, node: str) -> None:
        """End the profile runs on a lost node; each of its tasks has a decision of its own."""
        for job in self.admitted():
            if job.profile_run is not None and job.profile_run.node == node:
                self._end_profile(time_s, job)

    def _end_profile(self, time_s: float, job: TuningTimeline) -> None:
        if job.profile_run is not None:
            self._profile_gpu_s += job.profile_run.gpus * (time_s - job.profile_run.since_s)
        job.profile_run = None

    def _end(self, time_s: float, job: TuningTimeline) -> None:
        if job.finished_s is None:
            self._last_s = time_s
        self._end_profile(time_s, job)
        task, job.task = job.task, None
        if task is not None and task.job_ids == (job.job_id,):
            self._tasks.pop(task.task_id, None)
        # A job without a verdict ran alone; its first forecast precedes any estimate.
        if (
            job.evaluated is None
            and job.forecast is not None
            and job.forecast.reason != "profiled"
            and job.iterations
        ):
            self._alone_errors.add(job.forecast.iterations, job.iterations)

    def _note_steps(self, request: SolveRequested) -> None:
        match request.problem:
            case MergeProblem() as problem:
                for unit in problem.units:
                    if len(unit.job_ids) == 1:
                        self._note_table(unit.job_ids[0], problem.steps_of(unit.kind))
            case RivalProblem() as problem:
                for each in problem.jobs:
                    self._note_table(each.job_id, problem.step_tables[each.step_table])

    def _note_table(self, job_id: str, steps: Iterable[StepTime]) -> None:
        if (job := self._job(job_id)) is not None:
            job.step_s = {step.gpus: step.step_s for step in steps}

    def _fairness(self) -> dict[str, float]:
        finished = [each for job in self.kept() if (each := job.finished()) is not None]
        return finish_time_fairness(finished, self._gpus)

    def _dataset(self, job_id: str) -> str | None:
        job = self._job(job_id)
        return None if job is None or job.workload is None else job.workload.dataset.path


def _share(done: list[TuningTimeline], mode: str) -> float:
    return sum(job.mode == mode for job in done) / len(done) if done else 0.0
