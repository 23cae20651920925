"""A zone of mixture-of-experts models."""

from collections.abc import Iterator
from typing import Any, cast

from schemas.experts.outcomes import QueuedRanks
from schemas.experts.outcomes import RanksChangeReason as ChangeReason
from schemas.experts.reports import RoutingReport
from schemas.experts.settings import ExpertsPolicy
from schemas.experts.workload import MoeTrainWorkload
from schemas.fleet import RunReport
from streams.cell.jobs import Job
from streams.policies.experts.invariants import broken_invariants
from streams.policies.experts.moe_job import MoeJob
from streams.policies.experts.profiles import ExpertsProfiles
from streams.policies.experts.rank_allocation import Ranks
from streams.policies.experts.routing import ExpertRouting
from streams.policies.gang.gangs import Why
from streams.policies.gang.rigid import RigidZone
from streams.policies.ignored import no_such_run
from streams.policies.policy import ZoneContext


class ExpertsZone(RigidZone[MoeJob, ChangeReason]):
    """See `ZonePolicy`. Jobs begin, and services end in time, on ticks of the clock."""

    def __init__(self, context: ZoneContext) -> None:
        self._ranks = Ranks(context)
        super().__init__(context, self._ranks, MoeJob)
        self._routing = ExpertRouting(cast(ExpertsPolicy, context.zone.policy), self._ranks, context.outcomes)
        self._configure(context)

    def _gang_of(self, job: Job) -> MoeJob:
        return MoeJob(job, self._ranks.arrivals, since_s=self._ranks.time_s)

    def _admit(self, gang: MoeJob) -> QueuedRanks:
        waiting = self._ranks.jobs_without_ranks
        if isinstance(gang.workload, MoeTrainWorkload):
            return self._ranks.profiles.queued(gang.workload, gang.job.user, waiting)
        return QueuedRanks(jobs_waiting=waiting, ranks=gang.workload.ranks)

    def run_changed(self, job: Job, report: RunReport) -> bool:
        gang = self._ranks.jobs[job.job_id]
        if not isinstance(report, RoutingReport):
            return super().run_changed(job, report)
        if report.run_id == gang.run_id and report.node in (*gang.working, *gang.leaving):
            self._routing.report(gang, report)
            return True
        self._outcomes.add(no_such_run(report))
        return False

    def wake(self, time_s: float) -> None:
        self._ranks.time_s = time_s
        super().wake(time_s)
        over = [job for job in self._ranks.jobs.values() if _is_over(job, time_s)]
        for job in over:
            job.is_time_over = True
            self._ranks.end(job, Why("ended"))
        self._evict()
        self._ranks.begin_all()

    def broken_invariants(self) -> Iterator[str]:
        yield from super().broken_invariants()
        yield from broken_invariants(self._ranks)

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "turns": self._ranks.turns.numbers,
            "held_gpus": self._ranks.reserved_gpus,
        }

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "turns": self._ranks.turns.state(),
            "time_s": self._ranks.time_s,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._ranks.time_s = state["time_s"]
        super().restore(state)
        self._ranks.turns.restore(state["turns"])

    def _state_of(self, gang: MoeJob) -> Any:
        return gang.to_state()

    def _restored(self, state: Any) -> MoeJob:
        return MoeJob.of_state(state, self._jobs, self._routing.rule)

    def _configure(self, context: ZoneContext) -> None:
        super()._configure(context)
        policy = cast(ExpertsPolicy, context.zone.policy)
        self._ranks.report_interval_s = policy.report_interval_s
        self._ranks.patience_s = policy.patience_s
        self._ranks.profiles = ExpertsProfiles(context)
        self._routing.configure(policy)


def _is_over(job: MoeJob, time_s: float) -> bool:
    return job.until_s is not None and time_s >= job.until_s and not job.is_ending
