"""Measures of merging (Ymir, section 7): JCT, makespan, merges and their gains, errors of forecasts, and
finish-time fairness."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from infra.simulation.distribution import Distribution
from infra.simulation.measures import Table
from infra.simulation.merging.figures import Fairness, MergingEvaluation
from infra.simulation.merging.job_line import TuningJobLine
from infra.simulation.simulator import Step
from infra.views.merging.merges import Merge, Merges
from schemas.base import Outcome
from schemas.cells import CellConfigured
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, JobRejected, JobWithdrawn
from schemas.fleet import RunFinished
from schemas.jobs import JobSubmitted
from schemas.merging.outcomes import JobForetold, MergeJudged, TaskChanged
from schemas.merging.problems import MergeProblem, RivalProblem, StepTime
from schemas.merging.workload import TuningWorkload
from schemas.solves import SolveRequested
from solvers.merging.errors import GainErrors, IterationErrors
from solvers.merging.fairness import finish_time_fairness


class MergingMeasures:
    """Measures of a merging zone, see `ZoneMeasures`. GPUs count as in the cell's first configuration.

    Times are those of the events, not of the cell's clock, which stands still between two ticks.
    """

    def __init__(self, cell: CellConfigured, zone: str) -> None:
        self._zone = zone
        (own,) = (each for each in cell.zones if each.id == zone)
        gpus_of_type = {gpu.name: gpu.gpus for gpu in own.gpu_types}
        self._gpus = sum(gpus_of_type[node.gpu_type] for node in own.nodes)
        self._jobs: dict[str, TuningJobLine] = {}
        self._merges = Merges()
        self._verdicts: list[MergeJudged] = []
        self._gain_errors = GainErrors()
        self._alone_errors, self._merged_errors = IterationErrors(), IterationErrors()

    def take(self, step: Step) -> None:
        """Add the next step of the simulation."""
        time_s, event = step.time_s, step.entry.envelope.event
        match event:
            case JobSubmitted(zone=self._zone, workload=TuningWorkload() as workload):
                self._jobs.setdefault(event.job_id, TuningJobLine(event.job_id, event.user, time_s, workload))
            case RunFinished() if event.job_id in self._jobs:
                self._jobs[event.job_id].ended_s = time_s
        for decision in step.decisions:
            self._decide(time_s, decision.outcome)

    def figures(self) -> MergingEvaluation:
        """Return the figures so far."""
        done = [job for job in self._jobs.values() if job.state == "completed"]
        ends_s = [job.ended_s for job in self._jobs.values() if job.ended_s is not None]
        first_s = min((job.submitted_s for job in self._jobs.values()), default=0.0)
        rho = list(self._fairness().values())
        return MergingEvaluation(
            jobs=len(self._jobs),
            completed=len(done),
            jct=Distribution.of([job.jct_s for job in done if job.jct_s is not None]),
            makespan_s=max(ends_s, default=first_s) - first_s,
            temporal_share=_share(done, "temporal"),
            spatial_share=_share(done, "spatial"),
            merges_undone=sum(merge.is_undone for merge in self._each_merge()),
            saved_s=math.fsum(verdict.saved_s for verdict in self._verdicts),
            preemptions=sum(job.preemptions for job in self._jobs.values()),
            gain=self._gain_errors.figures(),
            iterations_alone=self._alone_errors.figures(),
            iterations_merged=self._merged_errors.figures(),
            fairness=Fairness(math.fsum(rho) / len(rho), max(rho), sum(each > 1 for each in rho) / len(rho))
            if rho
            else None,
        )

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield names and values for a summary."""
        return self.figures().rows()

    def as_json(self) -> dict[str, Any]:
        """Return the figures for programs."""
        return self.figures().as_json()

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
            "jobs": [job.as_row(rho.get(job.job_id)) for job in self._jobs.values()],
            "merges": merges,
        }

    def _decide(self, time_s: float, outcome: Outcome) -> None:
        match outcome:
            case JobAdmitted() if (job := self._jobs.get(outcome.job_id)) is not None:
                job.state = "admitted"
            case JobForetold(zone=self._zone):
                self._jobs[outcome.job_id].foretold = outcome
            case SolveRequested(zone=self._zone):
                self._note_steps(outcome)
            case TaskChanged(zone=self._zone):
                self._change(time_s, outcome)
            case MergeJudged(zone=self._zone):
                self._add_verdict(outcome)
            case JobCompleted() | JobRefunded() | JobWithdrawn() | JobRejected():
                job = self._jobs.get(outcome.job_id)
                if job is not None and not outcome.is_of_another_job:
                    job.end(time_s, outcome)
                    self._note_alone(job)

    def _change(self, time_s: float, change: TaskChanged) -> None:
        self._merges.take(change)
        active = change.job_ids[:1] if change.mode == "temporal" else change.job_ids
        for job_id in change.job_ids:
            job = self._jobs[job_id]
            job.merge = self._merges.latest.get(job_id)
            if job_id in active:
                job.preemptions += change.reason == "preempted"
                if change.gpus and job.started_s is None:
                    job.started_s = time_s

    def _add_verdict(self, verdict: MergeJudged) -> None:
        self._merges.take(verdict)
        self._verdicts.append(verdict)
        if verdict.reason != "finished":
            return
        if verdict.gain is not None and verdict.gain > -1:
            self._gain_errors.add(verdict.foretold_gain, verdict.gain)
        if verdict.iterations > 0:
            self._merged_errors.add(verdict.foretold_iterations, verdict.iterations)

    def _note_alone(self, job: TuningJobLine) -> None:
        forecast = job.foretold
        if job.state != "completed" or not job.ran_alone or forecast is None or not job.iterations:
            return
        if forecast.reason != "profiled":  # which is before its first estimate
            self._alone_errors.add(forecast.iterations, job.iterations)

    def _note_steps(self, request: SolveRequested) -> None:
        match request.problem:
            case MergeProblem() as problem:
                for unit in problem.units:
                    if len(unit.job_ids) == 1:
                        self._note_table(unit.job_ids[0], problem.steps_of(unit.kind))
            case RivalProblem() as problem:
                for job in problem.jobs:
                    self._note_table(job.job_id, problem.step_tables[job.step_table])

    def _note_table(self, job_id: str, steps: Iterable[StepTime]) -> None:
        self._jobs[job_id].step_s = {step.gpus: step.step_s for step in steps}

    def _fairness(self) -> dict[str, float]:
        finished = [each for job in self._jobs.values() if (each := job.finished()) is not None]
        return finish_time_fairness(finished, self._gpus)

    def _each_merge(self) -> list[Merge]:
        return list({id(merge): merge for merge in self._merges.latest.values()}.values())

    def _dataset(self, job_id: str) -> str:
        return self._jobs[job_id].workload.dataset.path


def _share(done: list[TuningJobLine], mode: str) -> float:
    return sum(job.mode == mode for job in done) / len(done) if done else 0.0
