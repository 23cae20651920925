"""The profile runs of a zone: their GPUs, their begin and their end."""

from collections.abc import Sequence
from typing import cast

from schemas.fleet import RefusedRun
from schemas.merging.commands import ProfileOrdered, TaskReleased, TaskReleaseReason
from schemas.merging.outcomes import TaskChangeReason
from schemas.merging.settings import STAGES_PER_PIPELINE, MergingPolicy
from streams.policies.gang.gangs import Gangs, Why
from streams.policies.gpus import Gpus
from streams.policies.merging.tuning_job import TuningJob
from streams.policies.policy import ZoneContext

_SHARE_DIVISOR = 4
"""Divisor of the open GPUs: plans leave at most the quotient idle for profile runs."""


class ProfileRuns(Gangs[TuningJob, TaskChangeReason]):
    """Profile runs of one zone."""

    def __init__(self, context: ZoneContext, gpus: Gpus) -> None:
        super().__init__(context)
        self.policy = cast(MergingPolicy, context.zone.policy)
        self.gpus = gpus
        self.time_s = context.cell.epoch_s
        self._unprofiled: dict[str, None] = {}
        """Jobs that wait for a profile run or are in one."""

    def add(self, job: TuningJob) -> None:
        self.gpus.hold(_profile_holder(job.job_id), job.profiled_on)
        super().add(job)

    def unprofiled(self) -> list[TuningJob]:
        """Return the jobs that wait for a profile run or are in one, in the order of their arrival."""
        return sorted((self.jobs[job_id] for job_id in self._unprofiled), key=lambda job: job.arrival)

    def may_run(self, job: TuningJob) -> bool:
        """Return whether a job's delay after a refused run is over."""
        return job.retry_s <= self.orders.elapsed_s

    def note(self, job: TuningJob) -> None:
        super().note(job)
        if job.job_id in self.jobs and job.stage != "ready":
            self._unprofiled[job.job_id] = None
        else:
            self._unprofiled.pop(job.job_id, None)

    @property
    def most_for_profiles(self) -> int:
        """Most GPUs that plans leave idle for profile runs."""
        return self.gpus.open // _SHARE_DIVISOR

    def profile(self, job: TuningJob) -> None:
        """Begin the profile run of a new job, if there is room."""
        gpus = STAGES_PER_PIPELINE if job.workload.pipeline else 1
        members = self.gpus.place(_profile_holder(job.job_id), gpus, {})
        if members is None:
            return
        if len(members) > 1:  # a profile run is on one node
            self.gpus.give_back(_profile_holder(job.job_id), members)
            return
        (node,) = members
        self._begin_generation(job, job.generation + 1, members, self.policy.profile_limit_s)
        job.stage = "profiling"
        self.note(job)
        self._outcomes.add(
            ProfileOrdered(
                zone=self.zone,
                node=node,
                order=job.order(job.run_id),
                gpus=gpus,
                iterations=self.policy.profile_iterations,
                limit_s=self.policy.profile_limit_s,
                fisher_samples=self.policy.fisher_samples,
            )
        )

    def end_profile(self, job: TuningJob) -> None:
        """Release the GPUs of a profile run that is over, or that is to end."""
        self.gpus.give_back(_profile_holder(job.job_id), job.members)
        job.members = {}
        if job.stage == "profiling":
            job.stage = "new"
        job.waits_since_s = self.time_s
        self.note(job)

    def abort_profile(self, job: TuningJob, why: Why[TaskChangeReason], without: str | None) -> None:
        """End a profile run by an order to its node."""
        self.leave(job, job.members, job.generation)
        self.end_profile(job)
        # The next profile run of a job replaces what a node has of the job, so a lost node needs no order.
        if job.leader == without or why.reason == "node_lost":
            return
        reason = release_reason(job, why)
        self._release(job.leader, f"profile-{job.generation}", job.generation, (job.job_id,), reason, [job])

    def _release(
        self,
        node: str,
        task_id: str,
        generation: int,
        job_ids: tuple[str, ...],
        reason: TaskReleaseReason,
        jobs: Sequence[TuningJob],
    ) -> None:
        """Order a node to end a task or a profile run.

        Args:
            job_ids: the jobs that the reason is about.
            jobs: the jobs whose runs end.
        """
        self._outcomes.add(
            TaskReleased(
                zone=self.zone,
                node=node,
                task_id=task_id,
                generation=generation,
                job_ids=job_ids,
                reason=reason,
                runs=tuple(RefusedRun(run_id=job.run_id, job_id=job.job_id) for job in jobs),
            )
        )


def _profile_holder(job_id: str) -> str:
    return f"profile/{job_id}"


def release_reason(job: TuningJob, why: Why[TaskChangeReason]) -> TaskReleaseReason:
    """Return the reason of an order to end a job's run, for a change of its task."""
    if why.reason == "node_lost":
        return "node_lost"
    if job.is_ending:
        return "withdrawn" if job.is_withdrawn else "failed"
    return "reallocated"
