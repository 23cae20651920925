"""Periodic reports of a zone: its jobs, its GPUs, and the errors of its forecasts."""

from dataclasses import dataclass

from schemas.merging.outcomes import ForetellingErrors, MergeJudged, ZoneMerged
from solvers.merging.errors import GainErrors, IterationErrors
from streams.cell.states import Stateful
from streams.policies.merging.tasks import Tasks

_INTERVALS_BETWEEN = 5


@dataclass(init=False, eq=False)
class MergingReports(Stateful):
    """Counts and errors of one zone since its start."""

    _next_s: float
    _finished: int
    _undone: int
    _saved_s: float
    _gains: GainErrors
    _alone: IterationErrors
    """Errors of the forecast iterations of jobs alone."""
    _merged: IterationErrors
    """Errors of the forecast iterations of jobs in a merge."""
    _last: ZoneMerged | None

    def __init__(self, epoch_s: float) -> None:
        self._next_s = epoch_s
        self._finished, self._undone, self._saved_s = 0, 0, 0.0
        self._gains, self._alone, self._merged = GainErrors(), IterationErrors(), IterationErrors()
        self._last = None

    def note_alone(self, forecast: float, iterations: int) -> None:
        """Count a job that ran alone until it was done, with the forecast for its kind before that."""
        if iterations > 0:
            self._alone.add(forecast, iterations)

    def note(self, merge: MergeJudged) -> None:
        """Count the result of a merge."""
        if merge.reason == "finished" and merge.iterations > 0:
            self._merged.add(merge.foretold_iterations, merge.iterations)
        if merge.reason == "finished" and merge.gain is not None and merge.gain > -1:
            self._gains.add(merge.foretold_gain, merge.gain)
        self._finished += merge.reason == "finished"
        self._undone += merge.reason == "undone"
        self._saved_s += merge.saved_s

    def due(self, time_s: float, tasks: Tasks, interval_s: float) -> ZoneMerged | None:
        """Return the next report; None if it is not due, or nothing has changed."""
        if time_s < self._next_s:
            return None
        self._next_s = time_s + _INTERVALS_BETWEEN * interval_s
        running = {job_id for task in tasks.all.values() for job_id in task.active_job_ids}
        profiling = sum(job.stage == "profiling" for job in tasks.jobs.values())
        report = ZoneMerged(
            zone=tasks.zone,
            jobs_waiting=sum(
                job.stage != "profiling" and job.job_id not in running for job in tasks.jobs.values()
            ),
            jobs_profiling=profiling,
            jobs_running=len(running),
            gpus=tasks.gpus.total,
            used_gpus=tasks.gpus.used,
            temporal_merges=sum(task.follower is not None for task in tasks.all.values()),
            spatial_merges=sum(
                task.mode == "spatial" and len(task.job_ids) == 2 for task in tasks.all.values()
            ),
            merges_finished=self._finished,
            merges_undone=self._undone,
            saved_s=self._saved_s,
            errors=self._errors(),
        )
        if report == self._last:
            return None
        self._last = report
        return report

    def _errors(self) -> ForetellingErrors:
        gains, alone, merged = self._gains.figures(), self._alone.figures(), self._merged.figures()
        return ForetellingErrors(
            gain_pearson=gains.pearson_r,
            gain_mape_pct=gains.mape_pct,
            gain_sign_pct=gains.sign_pct,
            iterations_mean_pct=alone.mean_ape_pct,
            iterations_max_pct=alone.max_ape_pct,
            transfer_iterations_mean_pct=merged.mean_ape_pct,
            transfer_iterations_max_pct=merged.max_ape_pct,
        )
