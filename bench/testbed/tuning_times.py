"""Times of fine-tuning tasks, by the log of a deployment."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np

from infra.simulation.simulator import Step
from schemas.fleet import RunFinished, RunProgressed, RunStarted
from schemas.merging.commands import ProfileOrdered, TaskAssigned, TaskReleased
from schemas.merging.reports import TaskEvaluated, TaskProfiled
from schemas.solves import SolveFinished, SolveRequested

_WINDOW_S = 60.0
"""Time over which the slowness of the machine is a mean."""
_POINTS = 8
"""Points of a mean over time."""
_FITS = 4
"""Fits of the steps and of the slowness in turn."""


@dataclass(frozen=True)
class TuningConstants:
    """Constants of a simulation.

    Attributes:
        step_fixed_s: part of a step that does not depend on the number of GPUs, evaluations included.
        sequence_s: part of a step for each sequence of the GPU that has most of them.
        exchange_s: time of the exchange in a step on several GPUs.
        warm_s: time from a task's command on nodes that have run one before to its start, and from the last
            evaluation to the report of its end.
        cold_s: the same on nodes that have not.
        profile_s: time of a profile run besides its steps and that time.
        release_s: time from the command that releases a task to the report of its end.
        solve_s: time from the request of a solve to its answer.
    """

    step_fixed_s: float
    sequence_s: float
    exchange_s: float
    warm_s: float
    cold_s: float
    profile_s: float
    release_s: float
    solve_s: float

    def step_s(self, sequences: int) -> float:
        """Return the time of a step.

        Args:
            sequences: most sequences that a GPU has in it. For four, three GPUs are no faster than two.
        """
        return self.step_fixed_s + self.sequence_s * sequences


class _EvaluationInterval(NamedTuple):
    """Time between two evaluations of a run."""

    end_s: float
    duration_s: float
    iterations: int
    sequences: int
    """Most sequences of a GPU in a step."""


@dataclass(frozen=True)
class Slowness:
    """Duration of steps over their mean, by time: other work on the machine comes and goes.

    Attributes:
        times_s: ascending times.
        factors: duration over the mean at each of them.
    """

    times_s: tuple[float, ...] = (0.0,)
    factors: tuple[float, ...] = (1.0,)

    def at(self, time_s: float) -> float:
        """Return the factor at a time, on straight lines between the known ones."""
        return float(np.interp(time_s, self.times_s, self.factors))

    def mean(self, start_s: float, end_s: float) -> float:
        """Return the mean factor over a time."""
        return fmean(self.at(time_s) for time_s in np.linspace(start_s, end_s, _POINTS))


def measured_constants(steps: Sequence[Step], job_ids: frozenset[str]) -> tuple[TuningConstants, Slowness]:
    """Measure the constants by some jobs, and the slowness of the machine over the time of the log.

    Raises:
        ValueError: no task of theirs was evaluated twice.
    """
    intervals, slowness = _intervals(steps, job_ids), Slowness()
    for _ in range(_FITS):
        fixed_s, sequence_s = _step_times(intervals, slowness)
        slowness = _slowness(intervals, fixed_s, sequence_s)
    starts_s = _starts_s(steps, job_ids)
    warm_s = fmean(starts_s[True] or starts_s[False] or [0.0])
    cold_s = fmean(starts_s[False] or [warm_s])
    constants = TuningConstants(
        step_fixed_s=fixed_s,
        sequence_s=sequence_s,
        exchange_s=_exchange_s(steps, job_ids),
        warm_s=warm_s,
        cold_s=cold_s,
        profile_s=_profile_s(steps, job_ids, (warm_s, cold_s), fixed_s, sequence_s, slowness),
        release_s=_release_s(steps, job_ids),
        solve_s=_solve_s(steps),
    )
    return constants, slowness


def _intervals(steps: Sequence[Step], job_ids: frozenset[str]) -> list[_EvaluationInterval]:
    """Return the times between evaluations of some jobs in training, and from the beginning of a task to its
    first one. Reported steps are medians, which leave out the steps that took long, and evaluations."""
    leading: dict[str, int] = {}
    """Batch size by run of the first job of a task; a receiver trains later than it is reported to start."""
    before: dict[str, tuple[float, int]] = {}
    found = []
    for step in steps:
        for decision in step.decisions:
            if isinstance(task := decision.outcome, TaskAssigned):
                first = task.orders[0]
                leading[first.run_id] = first.workload.hyperparameters.batch_size
        run = step.entry.envelope.event
        if isinstance(run, RunStarted) and run.run_id in leading:
            before[run.run_id] = step.time_s, run.samples_done // leading[run.run_id]
        if not isinstance(run, TaskEvaluated) or run.job_id not in job_ids or run.phase != "own":
            continue
        if run.step is not None and run.run_id in before:
            then_s, iterations = before[run.run_id]
            if run.iterations > iterations:
                duration_s = step.time_s - then_s
                sequences = run.step.micro_batch_size * run.step.accumulation_steps
                found.append(
                    _EvaluationInterval(step.time_s, duration_s, run.iterations - iterations, sequences)
                )
        before[run.run_id] = step.time_s, run.iterations
    return found


def _step_times(intervals: Sequence[_EvaluationInterval], slowness: Slowness) -> tuple[float, float]:
    """Fit the time of a step: a fixed part, and one for each sequence of the GPU that has most of them."""
    if not intervals:
        raise ValueError("no task was evaluated twice: nothing to calibrate by")
    iterations = np.array([each.iterations for each in intervals])
    sequences = iterations * np.array([each.sequences for each in intervals])
    duration_s = np.array(
        [each.duration_s / slowness.mean(each.end_s - each.duration_s, each.end_s) for each in intervals]
    )
    if len({each.sequences for each in intervals}) > 1:
        rows = np.stack([iterations, sequences], axis=1)
        fixed_s, sequence_s = np.linalg.lstsq(rows, duration_s, rcond=None)[0]
        if min(fixed_s, sequence_s) > 0:
            return float(fixed_s), float(sequence_s)
    return 0.0, float(duration_s.sum() / sequences.sum())


def _slowness(intervals: Sequence[_EvaluationInterval], fixed_s: float, sequence_s: float) -> Slowness:
    """Return the duration of steps over the fitted one, minute by minute."""
    duration_s: defaultdict[int, float] = defaultdict(float)
    fitted_s: defaultdict[int, float] = defaultdict(float)
    for each in intervals:
        window = int((each.end_s - each.duration_s / 2) // _WINDOW_S)
        duration_s[window] += each.duration_s
        fitted_s[window] += each.iterations * (fixed_s + sequence_s * each.sequences)
    windows = sorted(duration_s)
    return Slowness(
        tuple((window + 0.5) * _WINDOW_S for window in windows),
        tuple(duration_s[window] / fitted_s[window] for window in windows),
    )


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


def _starts_s(steps: Sequence[Step], job_ids: frozenset[str]) -> Mapping[bool, list[float]]:
    """Return the time from the command of a task to its start, for nodes that have run a task before and for
    others. Both include the mean time from the last evaluation of a run to the report of its end."""
    warm: set[str] = set()
    ordered: dict[str, tuple[float, bool]] = {}
    evaluated_s: dict[str, float] = {}
    starts_s: dict[bool, list[float]] = {True: [], False: []}
    ends_s: list[float] = []
    for step in steps:
        for decision in step.decisions:
            match command := decision.outcome:
                case ProfileOrdered():
                    warm.add(command.node)
                case TaskAssigned() if command.node == command.members[0].node:
                    nodes = {member.node for member in command.members}
                    ordered[command.orders[0].run_id] = step.time_s, nodes <= warm
                    warm |= nodes
        match step.entry.envelope.event:
            case RunStarted() as run if run.run_id in ordered and run.job_id in job_ids:
                command_s, was_warm = ordered.pop(run.run_id)
                starts_s[was_warm].append(step.time_s - command_s)
            case TaskEvaluated(phase="own") as run if run.job_id in job_ids:
                evaluated_s[run.run_id] = step.time_s
            case RunFinished() as run if run.run_id in evaluated_s:
                ends_s.append(step.time_s - evaluated_s[run.run_id])
    end_s = fmean(ends_s) if ends_s else 0.0
    return {was_warm: [start_s + end_s for start_s in found] for was_warm, found in starts_s.items()}


def _profile_s(
    steps: Sequence[Step],
    job_ids: frozenset[str],
    starts_s: tuple[float, float],
    fixed_s: float,
    sequence_s: float,
    slowness: Slowness,
) -> float:
    """Return the mean time of profile runs besides their starts, on nodes that have run a task before and on
    others, and their steps."""
    ordered: dict[str, tuple[float, bool, int]] = {}
    warm: set[str] = set()
    rest_s = []
    for step in steps:
        for decision in step.decisions:
            if isinstance(command := decision.outcome, TaskAssigned):
                warm.add(command.node)
            elif isinstance(command, ProfileOrdered):
                batch = command.order.workload.hyperparameters.batch_size
                ordered[command.order.run_id] = step.time_s, command.node in warm, batch
                warm.add(command.node)
        run = step.entry.envelope.event
        if isinstance(run, TaskProfiled) and run.job_id in job_ids:
            command_s, was_warm, batch = ordered[run.run_id]
            factor = slowness.mean(command_s, step.time_s)
            steps_s = factor * len(run.losses) * (fixed_s + sequence_s * batch)
            rest_s.append(step.time_s - command_s - starts_s[0 if was_warm else 1] - steps_s)
    return max(fmean(rest_s), 0.0) if rest_s else 0.0


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
