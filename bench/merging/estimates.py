"""Errors of the estimator against measurements (Table 2).

A workload runs each task in one setting, and its target is the best metric of its own curve there. So

    G = best of ten epochs merged / best of ten epochs alone - 1    (Eq. 1)

and a merge meets the target exactly if G is not negative. Tasks without a workload are left out, because the
setting of their merges is unknown.

The learning curves have no losses and no embeddings, so a merge is forecast only from outcomes of other
pairs: for each pair of tasks, no outcome of the two together is used. The work of a job alone is the
forecast of a zone that has profiled it, with the production code: the zone's kept profiles and finished jobs,
its problem, and the solver's answer. The profile run is that of a simulated node, with the iterations and the
time that a zone orders by default.

Tuned parameters and their data: each fit determines the variances of the estimator's effects from its visible
outcomes. Its list of effects and its scale of gains are among the best two of 48 forms on one half of the
pairs, chosen by a hash, with only that half in view; the table has both halves apart. The 48 forms themselves
were designed with all pairs in view, so even the other half is not wholly unseen.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Measurement, Result, Table, Value
from bench.merging.curves import Curve
from bench.merging.measured import Profiles, WorkloadJob, read_profiles, read_workload
from bench.merging.measured_truth import (
    MODES,
    GpuCluster,
    MeasuredTruth,
    PlacementStepTimes,
    Switching,
    workload_of,
)
from infra.simulation.merging.tuner import VirtualTuner
from schemas.merging.commands import JobOrder, ProfileOrdered
from schemas.merging.reports import TaskProfiled
from schemas.merging.settings import MergingPolicy
from schemas.merging.workload import TuningWorkload
from solvers.merging.errors import GainErrors, IterationErrors
from solvers.merging.estimator import estimate
from solvers.merging.pairs import Candidate, GainForecast, GainOutcome, forecast_gains
from streams.policies.merging.kind_of_jobs import KindOfJobs
from streams.policies.merging.knowledge import Knowledge

CLEAR_GAIN = 0.005
"""Smaller gains hardly exceed the difference between two runs of the same merge."""
_CELL, _ZONE, _NODE, _USER = "bench", "tuning", "n0", "u"
_CLUSTER = GpuCluster(8, 4)
"""Cluster of the workloads; a profile run has one of its GPUs."""
_NO_SWITCHES = Switching(0.0, 0.0)
"""No time here includes a switch."""
_LIMIT_S = 60.0


@dataclass(frozen=True)
class KnownTask:
    """A task as a workload runs it."""

    name: str
    samples: int
    batch_size: int
    target: float
    curve: Curve
    """Curve of the task alone."""
    epochs: int
    """Epochs until the target is met alone."""


@dataclass(frozen=True)
class KnownMerge:
    """A measured merge, from its receiver's side."""

    candidate: Candidate
    gain: float
    epochs: int | None
    """Epochs until the receiver's target is met; None if it never is."""
    own_epochs: int
    """Epochs until then alone."""

    @property
    def tasks(self) -> frozenset[str]:
        return frozenset((self.candidate.donor, self.candidate.receiver))


def known_tasks(profiles: Profiles, jobs: Iterable[WorkloadJob]) -> dict[str, KnownTask]:
    """Return the tasks of a workload by name, in order of names.

    Raises:
        LookupError: a job's curve was not measured, or its samples are unknown.
        ValueError: jobs of a task differ in setting or target, or a target was never met.
    """
    found: dict[str, tuple[WorkloadJob, KnownTask]] = {}
    for job in jobs:
        if job.task in found:
            first = found[job.task][0]
            if (job.setting, job.target, job.batch_size) != (first.setting, first.target, first.batch_size):
                raise ValueError(f"{job.name} differs from {first.name} in setting, target or batch size")
            continue
        if job.task not in profiles.samples:
            raise LookupError(f"samples of {job.task!r} are unknown: add them to the folder's samples.csv")
        curve = profiles.single(job.task, job.setting)
        epochs = curve.first_reaching(job.target)
        if epochs is None:
            raise ValueError(f"the target {job.target:g} of {job.name} is not met by its own curve")
        samples = profiles.samples[job.task]
        task = KnownTask(job.task, samples, job.batch_size, job.target, curve, epochs)
        found[job.task] = job, task
    return {name: found[name][1] for name in sorted(found)}


def known_merges(profiles: Profiles, tasks: Mapping[str, KnownTask]) -> list[KnownMerge]:
    """Return the measured pairs of these tasks; each spatial merge twice, once per receiver."""
    merges = []
    for mode in MODES:
        for donor in tasks.values():
            for receiver in tasks.values():
                curve = profiles.curves.merged(donor.name, receiver.name, mode)
                if curve is None:
                    continue
                merges.append(
                    KnownMerge(
                        Candidate(
                            donor.name,
                            receiver.name,
                            mode,
                            donor.samples,
                            receiver.samples,
                            donor_target=donor.target,
                            receiver_target=receiver.target,
                        ),
                        gain=curve.best / receiver.curve.best - 1.0,
                        epochs=curve.first_reaching(receiver.target),
                        own_epochs=receiver.epochs,
                    )
                )
    return merges


def visible(merges: Sequence[KnownMerge], target: KnownMerge) -> list[KnownMerge]:
    """Return the merges that an estimator may use to forecast one of them: none of the same two tasks, in
    either direction or mode."""
    return [other for other in merges if other.tasks != target.tasks]


def gains_without_pair(merges: Sequence[KnownMerge]) -> list[GainForecast]:
    """Forecast the gain of each merge, from the merges that it may use. Merges of one pair share a fit."""
    by_pair: dict[frozenset[str], list[int]] = {}
    for index, merge in enumerate(merges):
        by_pair.setdefault(merge.tasks, []).append(index)
    found: dict[int, GainForecast] = {}
    for indices in by_pair.values():
        seen = [GainOutcome(other.candidate, other.gain) for other in visible(merges, merges[indices[0]])]
        answers = forecast_gains(seen, [merges[index].candidate for index in indices])
        found |= dict(zip(indices, answers, strict=True))
    return [found[index] for index in range(len(merges))]


@dataclass(frozen=True)
class Backbone:
    """Measurements of one base model."""

    profiles: Profiles
    jobs: Mapping[str, WorkloadJob]
    """First job of each task in the workload."""
    tasks: Mapping[str, KnownTask]
    merges: tuple[KnownMerge, ...]

    @property
    def model(self) -> str:
        """Name of the base model."""
        return self.profiles.model


def read_backbone(folder: Path, model: str) -> Backbone:
    """Read a folder of profiles, with its workload `FM-1-<model>.csv`."""
    profiles = read_profiles(folder, model)
    jobs = read_workload(folder / "workloads" / f"FM-1-{model}.csv")
    tasks = known_tasks(profiles, jobs)
    by_task = {job.task: job for job in reversed(jobs)}
    return Backbone(
        profiles, {task: by_task[task] for task in tasks}, tasks, tuple(known_merges(profiles, tasks))
    )


def measure_estimates(folder: Path, models: Sequence[str]) -> Result:
    """Return figures of the estimator over all these base models together; tables have them apart. A figure
    that is undefined, because the folder has too few pairs, is left out."""
    backbones = [read_backbone(folder, model) for model in models]
    gains, gain_table = _gains(backbones)
    iterations, iteration_table = _iterations(backbones)
    return Result((*gains, iterations), (gain_table, iteration_table))


def tuned_on(merge: KnownMerge) -> bool:
    """Return whether a pair is in the half on which the form of the estimator was chosen."""
    names = "/".join(sorted(merge.tasks))
    return hashlib.blake2b(f"estimates/{names}".encode(), digest_size=8).digest()[0] % 2 == 0


def _gains(backbones: Sequence[Backbone]) -> tuple[list[Measurement], Table]:
    rows: list[dict[str, Value]] = []
    every, other_half = GainErrors(), GainErrors()
    for backbone in backbones:
        forecasts = gains_without_pair(backbone.merges)
        pairs = [(t.gain, m.gain, m) for t, m in zip(forecasts, backbone.merges, strict=True)]
        parts = {
            "all": pairs,
            "temporal": [pair for pair in pairs if pair[2].candidate.mode == "temporal"],
            "spatial": [pair for pair in pairs if pair[2].candidate.mode == "spatial"],
            f"|G| >= {CLEAR_GAIN}": [pair for pair in pairs if abs(pair[1]) >= CLEAR_GAIN],
            "tuned half": [pair for pair in pairs if tuned_on(pair[2])],
            "other half": [pair for pair in pairs if not tuned_on(pair[2])],
        }
        rows += (
            {"model": backbone.model, "part": part, **_counted(GainErrors(), some).figures()._asdict()}
            for part, some in parts.items()
        )
        _counted(every, pairs)
        _counted(other_half, parts["other half"])
    zero = _counted(GainErrors(), ((0.0, m.gain, m) for b in backbones for m in b.merges)).figures()
    held = every.figures()
    note = "leave-pair-out: no outcome of the two tasks together seen"
    figures = (
        (
            "gain_sign_pct",
            held.sign_pct,
            f"G >= 0; {other_half.figures().sign_pct:.1f} in the half its form was not chosen on; {note}",
        ),
        (
            "gain_mape_pct",
            held.mape_pct,
            f"of 1 + G, the metric over that alone; {zero.mape_pct:.2f} for a constant forecast of 0; {note}",
        ),
    )
    return [
        Measurement(name, value, words, held.pairs) for name, value, words in figures if value is not None
    ], Table("gains", rows)


def _iterations(backbones: Sequence[Backbone]) -> tuple[Measurement, Table]:
    """Measure forecasts of the epochs to the target of each task alone, before the first job of its kind."""
    errors = IterationErrors()
    rows: list[dict[str, Value]] = []
    for backbone in backbones:
        zone = QueriedZone(backbone.profiles, backbone.jobs.values())
        for task in backbone.tasks.values():
            finished = [other for name, other in backbone.jobs.items() if name != task.name]
            forecast = zone.forecast(backbone.jobs[task.name], finished)
            errors.add(forecast.epochs, task.epochs)
            rows.append(
                {
                    "model": backbone.model,
                    "task": task.name,
                    "accuracy_after_epoch": forecast.accuracy_after_epoch,
                    "forecast_epochs": forecast.epochs,
                    "epochs": task.epochs,
                }
            )
    figures = errors.figures()
    note = (
        f"mean; first epoch seen if of at most {MergingPolicy().profile_iterations} iterations; finished "
        "jobs of other tasks; targets are the curves' best"
    )
    assert figures.mean_ape_pct is not None
    error = Measurement("iterations_error_pct", figures.mean_ape_pct, note, figures.jobs)
    return error, Table("iterations", rows)


def _counted(errors: GainErrors, pairs: Iterable[tuple[float, float, KnownMerge]]) -> GainErrors:
    for forecast, real, _ in pairs:
        errors.add(forecast, real)
    return errors


@dataclass(frozen=True)
class JobForecast:
    """Forecast of a zone for a job."""

    epochs: float
    """Number of epochs until its target."""
    accuracy_after_epoch: float | None
    """Result of its profile run; None if that ended before, or was not done."""


class QueriedZone:
    """A zone of one base model with the default settings, which forecasts one job after another."""

    def __init__(self, profiles: Profiles, jobs: Iterable[WorkloadJob]) -> None:
        """Create the zone; `jobs` includes all jobs to forecast."""
        self._profiles = profiles
        self._policy = MergingPolicy()
        truth = MeasuredTruth(profiles, tuple(jobs), PlacementStepTimes(profiles, _CLUSTER), _NO_SWITCHES)
        self._tuner = VirtualTuner(_CELL, 1.0, truth)

    def forecast(self, job: WorkloadJob, finished: Sequence[WorkloadJob]) -> JobForecast:
        """Forecast a job that has just been profiled, or whose kind has been.

        Args:
            finished: jobs that ran alone to their end before, in this order.
        """
        knowledge = Knowledge(self._policy)
        for other in finished:
            self._finish(knowledge, other)
        workload = workload_of(job, self._profiles)
        kind = self._admit(knowledge, workload)
        problem = knowledge.estimate(())
        if problem is not None:
            knowledge.keep_estimates(estimate(problem, _LIMIT_S))
        expected = kind.expected_iterations
        iterations = workload.target.most_iterations if expected is None else expected
        return JobForecast(iterations / workload.iterations_per_epoch, kind.accuracy_after_epoch)

    def _finish(self, knowledge: Knowledge, job: WorkloadJob) -> None:
        workload = workload_of(job, self._profiles)
        kind = self._admit(knowledge, workload)
        curve = self._profiles.single(job.task, job.setting)
        epochs = curve.first_reaching(job.target) or len(curve.values)
        iterations = min(epochs * workload.iterations_per_epoch, workload.target.most_iterations)
        kind.note_finished(iterations, max(curve.values[:epochs]))
        knowledge.leave(kind.key)

    def _admit(self, knowledge: Knowledge, workload: TuningWorkload) -> KindOfJobs:
        kind = knowledge.admit(workload)
        if not kind.is_profiled:
            knowledge.profiled(kind.key, self._profile(workload))
        return kind

    def _profile(self, workload: TuningWorkload) -> TaskProfiled:
        order = JobOrder(run_id="p1", job_id="j", user=_USER, workload=workload, resume_iterations=0)
        command = ProfileOrdered(
            zone=_ZONE,
            node=_NODE,
            order=order,
            gpus=1,
            iterations=self._policy.profile_iterations,
            limit_s=self._policy.profile_limit_s,
            fisher_samples=self._policy.fisher_samples,
        )
        ((_, report),) = self._tuner.carry_out(command, 0.0)
        assert isinstance(report, TaskProfiled), "a simulated profile run succeeds"
        return report
