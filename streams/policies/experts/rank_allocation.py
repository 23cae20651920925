"""The jobs of a zone and their ranks: assignments of devices, preemptions and ends."""

import math
from collections.abc import Mapping

from schemas.base import Outcome
from schemas.experts.commands import RanksReleased
from schemas.experts.outcomes import RanksChanged
from schemas.experts.outcomes import RanksChangeReason as ChangeReason
from schemas.experts.workload import MoeServeWorkload, MoeTrainWorkload
from schemas.facts import NO_FACTS, Fact, Facts
from schemas.fleet import RunProgressed, RunReport
from streams.policies.experts.claims import Holdings
from streams.policies.experts.moe_job import MoeJob
from streams.policies.experts.outcomes import assigned, decided, members_of
from streams.policies.experts.profiles import ExpertsProfiles
from streams.policies.experts.turns import TurnQueue
from streams.policies.gang.gangs import Cause, Why
from streams.policies.gang.rigid import RigidGangs
from streams.policies.gang.turns import UserTurns
from streams.policies.policy import ZoneContext

_LONGEST_QUIET_S = 8_640.0
"""Longest expected silence of a service after its begin."""


class Ranks(RigidGangs[MoeJob, ChangeReason]):
    """Ranks of the jobs of one zone."""

    def __init__(self, context: ZoneContext) -> None:
        super().__init__(context)
        self.turns = UserTurns()
        self.profiles = ExpertsProfiles(context)
        self.time_s = context.cell.epoch_s
        self.report_interval_s = 0.0
        self.patience_s = math.inf
        self._next_claim_s = -math.inf
        """Earliest time of the next claim without another event."""
        self._next_retry_s = -math.inf
        """Time of the next run after a refused one (`OrderClock`)."""

    @property
    def jobs_without_ranks(self) -> int:
        """Number of live jobs without ranks."""
        return sum(not job.members and not job.is_ending for job in self.jobs.values())

    @property
    def reserved_gpus(self) -> int:
        """GPUs, idle or being released, that are kept for jobs for which others were preempted."""
        return sum(job.workload.ranks for job in self.jobs.values() if job.is_awaited)

    def add(self, job: MoeJob) -> None:
        self.turns.join(job.job.user)
        super().add(job)

    def begin_all(self) -> None:
        """Assign idle devices to waiting jobs, in the order of their turns, and preempt others for one that
        has waited for too long."""
        is_retry_due = self.orders.elapsed_s >= self._next_retry_s
        if not self.has_changed and self.time_s < self._next_claim_s and not is_retry_due:
            return
        retries_s = (job.retry_s for job in self.jobs.values() if job.waits)
        self._next_retry_s = min((at for at in retries_s if at > self.orders.elapsed_s), default=math.inf)
        self.note_assignment()
        holdings = Holdings(self.jobs.values(), self.gpus, self.turns, self.time_s, self.patience_s)
        queue = TurnQueue(self.turns, self.waiting, self.gpus.open, holdings.holds_up)
        heads = queue.heads()
        claim = holdings.first_claim(heads)
        self._next_claim_s = holdings.next_s(heads)
        if claim is not None:
            queue.put_first(claim.job)
            for other in claim.preempted:
                self._preempt_for(other, claim.job)
        while (idle := self.gpus.idle()) and (job := queue.next(idle)) is not None:
            if not self.start(job):
                raise AssertionError(f"job {job.job_id} needs {job.ranks} devices, and fewer are idle")

    def start(self, job: MoeJob) -> bool:
        if not super().start(job):
            return False
        job.since_s = self.time_s
        job.is_profiled = job.is_awaited = False
        self.has_changed = True
        return True

    def _preempt_for(self, job: MoeJob, other: MoeJob) -> None:
        """Preempt a job for another. It waits again as if it had been submitted now."""
        other.is_awaited = True
        waited_s = self.time_s - other.since_s
        facts: Facts = {"job_id": other.job_id, "user": other.job.user, "waited_s": waited_s}
        self.return_to_queue(job, Why[ChangeReason]("gave_way", facts))
        job.past_ranks_s, job.passed = None, 0
        job.arrival = self.arrivals
        self.arrivals += 1
        self.jobs[job.job_id] = self.jobs.pop(job.job_id)
        self.turns.give_turn(job.job.user)

    def _apply_report(self, job: MoeJob, report: RunReport) -> None:
        super()._apply_report(job, report)
        steps = report.measured if isinstance(report, RunProgressed) else None
        if steps is not None and isinstance(job.workload, MoeTrainWorkload):
            self.profiles.add(job.workload, job.job.user, job.members, steps)

    def _order_start(self, job: MoeJob) -> None:
        if job.popularity is not None:
            layers = job.popularity.resize(job.cluster, self.time_s)
            if layers:
                revision = job.popularity.revision
                self._outcomes.add(decided(self.zone, job, revision, "devices_changed", layers))
        self._outcomes.extend(assigned(self.zone, job, self.report_interval_s))

    def _changed(self, job: MoeJob, width_before: int, why: Why[ChangeReason]) -> Outcome:  # noqa: ARG002
        return RanksChanged(
            zone=self.zone,
            job_id=job.job_id,
            generation=job.generation,
            reason=why.reason,
            members=members_of(job),
            facts=dict(why.facts),
        )

    def _released(self, job: MoeJob, node: str, generation: int, why: Why[ChangeReason]) -> Outcome:
        return RanksReleased(
            zone=self.zone,
            node=node,
            job_id=job.job_id,
            generation=generation,
            run_id=job.run_of(generation),
            reason="ended" if why.reason == "ended" else job.release_reason(why.reason),
        )

    def _why(self, job: MoeJob, cause: Cause, facts: Mapping[str, Fact] = NO_FACTS) -> Why[ChangeReason]:
        return Why("ended") if cause == "work_done" else super()._why(job, cause, facts)

    def _quiet_after_start_s(self, job: MoeJob) -> float:
        """Return the time until a service ends: it may be silent until then."""
        if not isinstance(job.workload, MoeServeWorkload):
            return 0.0
        ends_s = math.inf if job.until_s is None else job.until_s
        return min(max(ends_s - self.time_s, 0.0), _LONGEST_QUIET_S)

    def _release_job(self, job: MoeJob) -> None:
        job.past_ranks_s, job.since_s = job.had_ranks_s(self.time_s), self.time_s

    def _release_ended(self, job: MoeJob) -> None:
        super()._release_ended(job)
        user = job.job.user
        if user not in self.room.held:
            self.turns.leave(user)
