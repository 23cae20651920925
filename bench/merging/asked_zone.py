"""What a zone foretells of a job that runs alone: the question that it asks, and what its solver answers.

Everything is of the code of production: what a zone keeps of profiles and of jobs that have finished, what it
asks, and the solver's answer. The profile run is that of a simulated node, with the iterations and the time
that a zone orders by default.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.merging.measured import Profiles, WorkloadJob
from bench.merging.measured_truth import MeasuredTruth, Switching, workload_of
from bench.merging.step_times import Cluster, StepTimes
from infra.simulation.merging.tuner import VirtualTuner
from schemas.merging.commands import JobOrder, ProfileOrdered
from schemas.merging.reports import ProfileReported
from schemas.merging.settings import MergingPolicy
from schemas.merging.workload import TuningWorkload
from solvers.merging.estimate import estimate
from streams.policies.merging.kind_of_jobs import KindOfJobs
from streams.policies.merging.knowledge import Knowledge

_CELL, _ZONE, _NODE, _USER = "bench", "tuning", "n0", "u"
_CLUSTER = Cluster(8, 4)
"""Of the workloads; a profile run has one of its GPUs."""
_NO_SWITCHES = Switching(0.0, 0.0)
"""Nothing here takes the time of one."""
_LIMIT_S = 60.0


@dataclass(frozen=True)
class ForetoldJob:
    """What a zone takes a job to need."""

    epochs: float
    """From the first one on, until its target."""
    accuracy_after_epoch: float | None
    """That its profile run has shown; None where that was over before, or was not made."""


class AskedZone:
    """A zone of one base model with the default settings, to be asked about one job after another."""

    def __init__(self, profiles: Profiles, jobs: Iterable[WorkloadJob]) -> None:
        """`jobs` has any that it may be asked about."""
        self._profiles = profiles
        self._policy = MergingPolicy()
        truth = MeasuredTruth(profiles, tuple(jobs), StepTimes(profiles, _CLUSTER), _NO_SWITCHES)
        self._tuner = VirtualTuner(_CELL, 1.0, truth)

    def foretold(self, job: WorkloadJob, finished: Sequence[WorkloadJob]) -> ForetoldJob:
        """Of a job that has just been profiled, or whose kind was before.

        Args:
            finished: that ran alone to their end before, in this order.
        """
        knowledge = Knowledge(self._policy)
        for other in finished:
            self._finish(knowledge, other)
        workload = workload_of(job, self._profiles)
        kind = self._admit(knowledge, workload)
        problem = knowledge.estimate(())
        if problem is not None:
            knowledge.take(estimate(problem, _LIMIT_S))
        expected = kind.expected_iterations
        iterations = workload.target.most_iterations if expected is None else expected
        return ForetoldJob(iterations / workload.iterations_per_epoch, kind.accuracy_after_epoch)

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
