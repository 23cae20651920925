"""Forecasts for the jobs of a zone: step times, and the time of their remaining work."""

from collections.abc import Mapping, Sequence

from schemas.facts import NO_FACTS, Fact
from schemas.merging.estimates import MergeMode
from schemas.merging.outcomes import ForecastReason, JobForetold
from schemas.merging.problems import StepTime
from schemas.merging.settings import STAGES_PER_PIPELINE
from solvers.merging.lookup_table import faster_only
from streams.policies.merging.knowledge import Knowledge
from streams.policies.merging.speeds import Speeds
from streams.policies.merging.tuning_job import TuningJob


class Forecasts:
    """Forecasts of one zone."""

    def __init__(self, zone: str, knowledge: Knowledge, speeds: Speeds) -> None:
        self._zone = zone
        self._knowledge = knowledge
        self._speeds = speeds

    def steps(self, job: TuningJob) -> tuple[StepTime, ...]:
        """Return the time of a job's step with each number of GPUs that it may have."""
        return self._speeds.steps(self._knowledge.kinds[job.kind], job.workload)

    def step_s(self, job: TuningJob, gpus: int) -> float:
        """Return the time of a job's step with a number of GPUs, or with as many of them as speed it up."""
        steps = self.steps(job)
        return next((step.step_s for step in reversed(steps) if step.gpus <= gpus), steps[0].step_s)

    def remaining_s(self, jobs: Sequence[TuningJob], mode: str, gpus: int) -> float:
        """Return the time of the remaining work of jobs in one task."""
        if mode == "spatial" and len(jobs) == 2:
            return self.joint_steps(jobs) * sum(self.step_s(job, gpus) for job in jobs)
        return sum(self._knowledge.iterations_left(job) * self.step_s(job, gpus) for job in jobs)

    def joint_table(self, jobs: Sequence[TuningJob]) -> tuple[StepTime, ...]:
        """Return the step times of jobs that are trained together: a joint step has one step of each."""
        sizes = sorted({step.gpus for job in jobs for step in self.steps(job)})
        return faster_only((size, sum(self.step_s(job, size) for job in jobs)) for size in sizes)

    def joint_sizes(self, jobs: Sequence[TuningJob]) -> tuple[int, int]:
        """Return the samples of a joint step, and of all data of the jobs."""
        kinds = [self._knowledge.kinds[job.kind] for job in jobs]
        return sum(kind.batch_size for kind in kinds), sum(kind.dataset_samples for kind in kinds)

    def joint_steps(self, jobs: Sequence[TuningJob]) -> float:
        """Return the remaining joint steps of a spatial merge, until both jobs are done (Eq. 4)."""
        kinds = [self._knowledge.kinds[job.kind] for job in jobs]
        batch, samples = self.joint_sizes(jobs)
        epochs = max(
            self._knowledge.iterations_left(job) * kind.batch_size / kind.dataset_samples
            for job, kind in zip(jobs, kinds, strict=True)
        )
        return epochs * samples / batch

    def bar(self, mode: MergeMode, donor: TuningJob, receiver: TuningJob) -> None:
        """Bar merges of two kinds of jobs in a mode: a run of such a merge has failed."""
        self._knowledge.bar(mode, donor.kind, receiver.kind)

    def decision(
        self, job: TuningJob, reason: ForecastReason, facts: Mapping[str, Fact] = NO_FACTS
    ) -> JobForetold:
        """Return the forecast of a job as a decision."""
        kind = self._knowledge.kinds[job.kind]
        return JobForetold(
            zone=self._zone,
            job_id=job.job_id,
            reason=reason,
            iterations=self._knowledge.expected_iterations(job),
            step_s=self.step_s(job, STAGES_PER_PIPELINE if job.workload.pipeline else 1),
            loader_s=kind.loader_s,
            memory_gib=kind.memory_gib,
            facts=dict(facts),
        )
