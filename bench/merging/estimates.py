"""Errors of the estimator against measurements (Table 2).

The learning curves have no losses and no embeddings, so a merge is forecast only from outcomes of other pairs
(`known`): for each pair of tasks, no outcome of the two together is used. The work of a job alone is the
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

from bench.figures import Measurement, Result, Table
from bench.merging.known import KnownMerge, KnownTask, foretold_gains, known_merges, known_tasks
from bench.merging.measured import Profiles, WorkloadJob, read_profiles, read_workload
from bench.merging.measured_truth import MeasuredTruth, Switching, workload_of
from bench.merging.step_times import GpuCluster, PlacementStepTimes
from infra.simulation.merging.tuner import VirtualTuner
from schemas.merging.commands import JobOrder, ProfileOrdered
from schemas.merging.reports import ProfileReported
from schemas.merging.settings import MergingPolicy
from schemas.merging.workload import TuningWorkload
from solvers.merging.errors import GainErrors, IterationErrors
from solvers.merging.estimator import estimate
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


def estimates(folder: Path, models: Sequence[str] = ("roberta-base", "vit")) -> Result:
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
    rows: list[tuple[float | str | None, ...]] = []
    every, other_half = GainErrors(), GainErrors()
    for backbone in backbones:
        forecasts = foretold_gains(backbone.merges)
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
            (backbone.model, part, *_counted(GainErrors(), some).figures()) for part, some in parts.items()
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
    columns = ("model", "part", "pairs", "pearson_r", "mape_pct", "gain_error_pct", "sign_pct")
    return [
        Measurement(name, value, words, held.pairs) for name, value, words in figures if value is not None
    ], Table("gains", columns, rows)


def _iterations(backbones: Sequence[Backbone]) -> tuple[Measurement, Table]:
    """Measure forecasts of the epochs to the target of each task alone, before the first job of its kind."""
    errors = IterationErrors()
    rows: list[tuple[float | str | None, ...]] = []
    for backbone in backbones:
        zone = QueriedZone(backbone.profiles, backbone.jobs.values())
        for task in backbone.tasks.values():
            finished = [other for name, other in backbone.jobs.items() if name != task.name]
            forecast = zone.forecast(backbone.jobs[task.name], finished)
            errors.add(forecast.epochs, task.epochs)
            rows.append(
                (backbone.model, task.name, forecast.accuracy_after_epoch, forecast.epochs, task.epochs)
            )
    figures = errors.figures()
    note = (
        f"mean; first epoch seen if of at most {MergingPolicy().profile_iterations} iterations; finished "
        "jobs of other tasks; targets are the curves' best"
    )
    columns = ("model", "task", "accuracy_after_epoch", "foretold", "real")
    assert figures.mean_ape_pct is not None
    error = Measurement("iterations_error_pct", figures.mean_ape_pct, note, figures.jobs)
    return error, Table("iterations", columns, rows)


def _counted(errors: GainErrors, pairs: Iterable[tuple[float, float, KnownMerge]]) -> GainErrors:
    for foretold, real, _ in pairs:
        errors.add(foretold, real)
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

    def _profile(self, workload: TuningWorkload) -> ProfileReported:
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
        assert isinstance(report, ProfileReported), "a simulated profile run succeeds"
        return report
