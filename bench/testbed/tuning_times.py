"""Times of fine-tuning tasks, by the log of a deployment."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np

from infra.simulation.simulator import Step
from schemas.commands import Command
from schemas.fleet import RunFinished, RunProgressed, RunStarted
from schemas.merging.commands import ProfileOrdered, TaskAssigned, TaskReleased
from schemas.merging.reports import TaskEvaluated, TaskProfiled
from schemas.solves import SolveFinished, SolveRequested


@dataclass(frozen=True)
class TuningConstants:
    """Constants of a simulation.

    Attributes:
        step_fixed_s: part of a step that does not depend on the number of GPUs, evaluations included.
        step_shared_s: part of a step on one GPU that GPUs share.
        exchange_s: time of the exchange in a step on several GPUs.
        warm_s: time from a task's command on nodes that have run one before to the first step, and from the
            last step to the report.
        cold_s: the same on nodes that have not.
        profile_s: time of a profile run besides its steps and that time.
        release_s: time from the command that releases a task to the report of its end.
        solve_s: time from the request of a solve to its answer.
    """

    step_fixed_s: float
    step_shared_s: float
    exchange_s: float
    warm_s: float
    cold_s: float
    profile_s: float
    release_s: float
    solve_s: float

    def step_s(self, gpus: int) -> float:
        """Return the time of a step."""
        return self.step_fixed_s + self.step_shared_s / gpus


class _Interval(NamedTuple):
    """Time between two evaluations of a run."""

    duration_s: float
    iterations: int
    gpus: int


class _Work(NamedTuple):
    """A run that was observed to its end."""

    duration_s: float
    iterations: int
    gpus: int
    was_warm: bool
    is_profile: bool

    def other_s(self, fixed_s: float, shared_s: float) -> float:
        """Return the time besides the steps."""
        return self.duration_s - self.iterations * (fixed_s + shared_s / self.gpus)


def measured_constants(steps: Sequence[Step], job_ids: frozenset[str]) -> TuningConstants:
    """Measure the constants by some jobs.

    Raises:
        ValueError: no task of theirs was evaluated twice.
    """
    fixed_s, shared_s = _step_times(_intervals(steps, job_ids))
    other_s: defaultdict[tuple[bool, bool], list[float]] = defaultdict(list)
    for work in _works(steps, job_ids):
        other_s[work.is_profile, work.was_warm].append(work.other_s(fixed_s, shared_s))
    tasks = other_s[False, True] or other_s[False, False]
    warm_s = max(fmean(tasks), 0.0) if tasks else 0.0
    warm, cold = (other_s[True, was_warm] for was_warm in (True, False))
    return TuningConstants(
        step_fixed_s=fixed_s,
        step_shared_s=shared_s,
        exchange_s=_exchange_s(steps, job_ids),
        warm_s=warm_s,
        cold_s=warm_s + (max(fmean(cold) - fmean(warm), 0.0) if warm and cold else 0.0),
        profile_s=max(fmean(warm or cold or [warm_s]) - warm_s, 0.0),
        release_s=_release_s(steps, job_ids),
        solve_s=_solve_s(steps),
    )


def _intervals(steps: Sequence[Step], job_ids: frozenset[str]) -> list[_Interval]:
    """Return the times between evaluations of some jobs in training. Reported steps are medians, which leave
    out the steps that took long, and evaluations."""
    before: dict[str, tuple[float, int]] = {}
    found = []
    for step in steps:
        run = step.entry.envelope.event
        if not isinstance(run, TaskEvaluated) or run.job_id not in job_ids or run.phase != "own":
            continue
        if run.step is not None and run.run_id in before:
            then_s, iterations = before[run.run_id]
            if run.iterations > iterations:
                duration_s = step.time_s - then_s
                found.append(_Interval(duration_s, run.iterations - iterations, run.step.gpus))
        before[run.run_id] = step.time_s, run.iterations
    return found


def _step_times(intervals: Sequence[_Interval]) -> tuple[float, float]:
    """Fit the time of a step by the number of GPUs: a fixed part, and one that they share."""
    if not intervals:
        raise ValueError("no task was evaluated twice: nothing to calibrate by")
    iterations = np.array([each.iterations for each in intervals])
    gpus = np.array([each.gpus for each in intervals])
    duration_s = np.array([each.duration_s for each in intervals])
    if len(set(gpus)) > 1:
        rows = np.stack([iterations, iterations / gpus], axis=1)
        fixed_s, shared_s = np.linalg.lstsq(rows, duration_s, rcond=None)[0]
        if min(fixed_s, shared_s) > 0:
            return float(fixed_s), float(shared_s)
    return 0.0, float(duration_s.sum() / (iterations / gpus).sum())


def _exchange_s(steps: Sequence[Step], job_ids: frozenset[str]) -> float:
    exchanges_s = [
        run.step.exchange_s
        for step in steps
        if isinstance(run := step.entry.envelope.event, TaskEvaluated)
        and run.job_id in job_ids
        and run.step is not None
        and run.step.gpus > 1
    ]
    return fmean(exchanges_s) if exchanges_s else 0.0


def _release_s(steps: Sequence[Step], job_ids: frozenset[str]) -> float:
    released_s: dict[str, float] = {}
    duration_s = []
    for step in steps:
        for decision in step.decisions:
            if isinstance(release := decision.outcome, TaskReleased):
                released_s |= {job_id: step.time_s for job_id in release.job_ids if job_id in job_ids}
        run = step.entry.envelope.event
        if isinstance(run, RunProgressed) and run.complete and run.job_id in released_s:
            duration_s.append(step.time_s - released_s.pop(run.job_id))
    return fmean(duration_s) if duration_s else 0.0


def _works(steps: Sequence[Step], job_ids: frozenset[str]) -> list[_Work]:
    """Return profile runs, and runs of jobs alone to their ends."""
    warm: set[str] = set()
    ordered: dict[str, tuple[float, Command, bool]] = {}
    begun: dict[str, int] = {}
    works = []
    for step in steps:
        for decision in step.decisions:
            match command := decision.outcome:
                case ProfileOrdered():
                    ordered[command.order.run_id] = step.time_s, command, command.node in warm
                    warm.add(command.node)
                case TaskAssigned(orders=(order,)) if command.node == command.members[0].node:
                    nodes = {member.node for member in command.members}
                    ordered[order.run_id] = step.time_s, command, nodes <= warm
                    warm |= nodes
        match step.entry.envelope.event:
            case RunStarted() as run:
                begun.setdefault(run.run_id, run.samples_done)
            case TaskProfiled() | RunFinished() as run if run.run_id in ordered and run.job_id in job_ids:
                works.append(_work(ordered[run.run_id], step.time_s, run, begun))
    return works


def _work(
    ordered: tuple[float, Command, bool],
    end_s: float,
    run: TaskProfiled | RunFinished,
    begun: Mapping[str, int],
) -> _Work:
    start_s, command, was_warm = ordered
    if isinstance(run, TaskProfiled):
        return _Work(end_s - start_s, len(run.losses), 1, was_warm, is_profile=True)
    assert isinstance(command, TaskAssigned), "a profile run does not finish a job"
    batch = command.orders[0].workload.hyperparameters.batch_size
    iterations = (run.samples_done - begun.get(run.run_id, 0)) // batch
    gpus = sum(member.gpus for member in command.members)
    return _Work(end_s - start_s, iterations, gpus, was_warm, is_profile=False)


def _solve_s(steps: Sequence[Step]) -> float:
    requested_s: dict[str, float] = {}
    duration_s = []
    for step in steps:
        for decision in step.decisions:
            if isinstance(request := decision.outcome, SolveRequested):
                requested_s[request.request_id] = step.time_s
        answer = step.entry.envelope.event
        if isinstance(answer, SolveFinished) and answer.request_id in requested_s:
            duration_s.append(step.time_s - requested_s[answer.request_id])
    return fmean(duration_s) if duration_s else 0.0
