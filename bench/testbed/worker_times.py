"""Speeds and pauses of elastic jobs, by the log of a deployment."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import numpy as np

from infra.simulation.elastic.workers import WorkerPauses
from infra.simulation.simulator import Step
from schemas.elastic.commands import WorkersAssigned
from schemas.fleet import RunFinished, RunProgressed
from schemas.profiles import MeasuredSteps


@dataclass
class _WorkerSets:
    """The sets of workers that a job had, one after another."""

    assigned: list[tuple[float, WorkersAssigned]] = field(default_factory=list)
    """Time and command of each."""
    finished_s: float | None = None

    def add(self, time_s: float, command: WorkersAssigned) -> None:
        """Add a command; the members of a set get the same one."""
        if not self.assigned or self.assigned[-1][1].generation < command.generation:
            self.assigned.append((time_s, command))

    def expected(self, run_id: str) -> float | None:
        """Return the speed that the zone expected of a run."""
        return next((each.expected_samples_per_s for _, each in self.assigned if each.run_id == run_id), None)

    def lost(self, pace: float) -> tuple[float, float] | None:
        """Return the sum of the speeds of later sets over that of the first, and the time in which the first
        would have trained what all would have beyond the job's work, without pauses; None for a job that was
        preempted, or is not over."""
        if self.finished_s is None or any(each.resumes for _, each in self.assigned[1:]):
            return None
        speeds = [pace * each.expected_samples_per_s for _, each in self.assigned]
        times_s = [*(time_s for time_s, _ in self.assigned), self.finished_s]
        spans = (end_s - start_s for start_s, end_s in pairwise(times_s))
        trained = sum(speed * span_s for speed, span_s in zip(speeds, spans, strict=True))
        lost_samples = trained - self.assigned[0][1].workload.work_samples
        return sum(speeds[1:]) / speeds[0], lost_samples / speeds[0]


def worker_times(steps: Sequence[Step], job_ids: frozenset[str]) -> tuple[float, WorkerPauses]:
    """Measure the pace by the speeds that runs report, over those expected; and the pauses by least squares
    over jobs: a job's work is what its workers train in the time that their pauses leave.

    Raises:
        ValueError: none of the jobs was completed without a preemption.
    """
    jobs: defaultdict[str, _WorkerSets] = defaultdict(_WorkerSets)
    paces: list[float] = []
    for step in steps:
        for decision in step.decisions:
            command = decision.outcome
            if isinstance(command, WorkersAssigned) and command.job_id in job_ids:
                jobs[command.job_id].add(step.time_s, command)
        match step.entry.envelope.event:
            case RunFinished() as run if run.job_id in jobs:
                jobs[run.job_id].finished_s = step.time_s
            case RunProgressed(measured=MeasuredSteps() as measured) as run if run.job_id in jobs:
                paces += (
                    measured.samples_per_s / expected
                    for expected in _given(jobs[run.job_id].expected(run.run_id))
                )
    pace = median(paces) if paces else 1.0
    lost = [found for job in jobs.values() if (found := job.lost(pace)) is not None]
    if not lost:
        raise ValueError("no elastic job was completed: nothing to calibrate by")
    start_s, resize_s = _pauses_s(lost)
    # A preempted job begins again, and saves its state before.
    return pace, WorkerPauses(start_s, resize_s, preemption_s=start_s + resize_s)


def _pauses_s(lost: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit the pauses of a start and of a change to the rows of `_WorkerSets.lost`; neither is negative."""
    rows = np.array([(1.0, later) for later, _ in lost])
    lost_s = np.array([each for _, each in lost])
    start_s, resize_s = np.linalg.lstsq(rows, lost_s, rcond=None)[0]
    if resize_s < 0:
        start_s, resize_s = lost_s.mean(), 0.0
    return max(float(start_s), 0.0), float(resize_s)


def _given(value: float | None) -> Iterator[float]:
    if value is not None:
        yield value
