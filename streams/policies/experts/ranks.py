"""The jobs of a zone and their ranks: assignments of devices, preemptions and ends."""

import math
from collections import Counter
from collections.abc import Mapping

from schemas.base import Outcome
from schemas.experts.outcomes import RanksChangeReason as ChangeReason
from schemas.experts.workload import MoeServeWorkload
from schemas.facts import Fact, Facts
from streams.cell.live_bytes import LiveBytes
from streams.cell.outcomes import Outcomes
from streams.policies.experts.claims import Holdings
from streams.policies.experts.job import MoeJob
from streams.policies.experts.outcomes import assigned, changed, decided, released
from streams.policies.experts.turns import UserTurns
from streams.policies.gang.gangs import Why
from streams.policies.gang.single_job import SingleJobGangs
from streams.policies.gpus import Gpus
from streams.policies.orders import OrderClock

_LONGEST_QUIET_S = 8_640.0
"""Longest expected silence of a service after its begin."""


class Ranks(SingleJobGangs[MoeJob, ChangeReason]):
    """Ranks of the jobs of one zone."""

    def __init__(
        self, zone: str, gpus: Gpus, live: LiveBytes, orders: OrderClock, outcomes: Outcomes
    ) -> None:
        super().__init__(zone, live, orders, outcomes)
        self.gpus = gpus
        self.turns = UserTurns()
        self.arrivals = 0
        """Number of arrivals by now, from which `arrival` is set."""
        self.time_s = 0.0
        self.report_interval_s = 0.0
        self.patience_s = math.inf
        self.sizes: Counter[int] = Counter()
        """Number of jobs by number of ranks; only sizes of at least one job."""
        self._next_claim_s = -math.inf
        """Earliest time of the next claim without another event."""
        self._next_retry_s = -math.inf
        """Time of the next run after a refused one (`OrderClock`)."""

    @property
    def waiting(self) -> list[MoeJob]:
        """Jobs that can be given ranks, in the order of their submission."""
        elapsed_s = self.orders.elapsed_s
        return [job for job in self.jobs.values() if job.waits and job.retry_s <= elapsed_s]

    @property
    def jobs_without_ranks(self) -> int:
        """Number of live jobs without ranks."""
        return sum(not job.members and not job.is_ending for job in self.jobs.values())

    @property
    def held_devices(self) -> int:
        """Devices, idle or being released, that are held for jobs for which others were preempted."""
        return sum(job.workload.ranks for job in self.jobs.values() if job.is_awaited)

    def add(self, job: MoeJob) -> None:
        """Add a job."""
        self.jobs[job.job_id] = job
        self.sizes[job.workload.ranks] += 1
        self.gpus.hold(job.job_id, {**job.members, **job.leaving_ranks})
        self.has_changed = True
        self.note(job)

    def begin_all(self) -> None:
        """Assign idle devices to waiting jobs, in the order of their turns, and preempt others for one that
        has waited for too long."""
        is_retry_due = self.orders.elapsed_s >= self._next_retry_s
        if not self.has_changed and self.time_s < self._next_claim_s and not is_retry_due:
            return
        retries_s = (job.retry_s for job in self.jobs.values() if job.waits)
        self._next_retry_s = min((at for at in retries_s if at > self.orders.elapsed_s), default=math.inf)
        self.has_changed = False
        holdings = Holdings(self.jobs.values(), self.gpus, self.turns, self.time_s, self.patience_s)
        queue = self.turns.queue(self.waiting, self.gpus.open, holdings.holds_up)
        heads = queue.heads()
        claim = holdings.first_claim(heads)
        self._next_claim_s = holdings.next_s(heads)
        if claim is not None:
            queue.put_first(claim.job)
            for other in claim.preempted:
                self._preempt_for(other, claim.job)
        while (idle := self.gpus.idle()) and (job := queue.next(idle)) is not None:
            self._begin(job)

    def _preempt_for(self, job: MoeJob, other: MoeJob) -> None:
        """Preempt a job for another. It waits again as if it had been submitted now."""
        other.is_awaited = True
        waited_s = self.time_s - other.since_s
        facts: Facts = {"job_id": other.job_id, "user": other.job.user, "waited_s": waited_s}
        self.put_back(job, Why[ChangeReason]("gave_way", facts))
        job.had_s, job.passed = None, 0
        job.arrival = self.arrivals
        self.arrivals += 1
        self.jobs[job.job_id] = self.jobs.pop(job.job_id)
        self.turns.give(job.job.user)

    def _begin(self, job: MoeJob) -> None:
        members = self.gpus.place(job.job_id, job.workload.ranks, {})
        if members is None:
            raise AssertionError(f"job {job.job_id} needs {job.workload.ranks} devices, and fewer are idle")
        job.members, job.leader = members, next(iter(members))
        job.generation += 1
        job.since_s = self.time_s
        job.is_profiled = job.is_awaited = False
        job.hear(self.orders.elapsed_s)
        self.has_changed = True
        self._outcomes.add(changed(self.zone, job, Why("resumed" if job.generation > 1 else "started")))
        if job.popularity is not None:
            layers = job.popularity.resize(job.cluster, self.time_s)
            if layers:
                self._outcomes.add(
                    decided(self.zone, job, job.popularity.revision, "devices_changed", layers)
                )
        self.note(job)
        self._outcomes.extend(assigned(self.zone, job, self.report_interval_s))

    def _width(self, job: MoeJob) -> int:
        return sum(job.members.values())

    def _changed(self, job: MoeJob, width_before: int, why: Why[ChangeReason]) -> Outcome:  # noqa: ARG002
        return changed(self.zone, job, why)

    def _released(self, job: MoeJob, node: str, generation: int, why: Why[ChangeReason]) -> Outcome:
        return released(self.zone, job, node, generation, why)

    def _why_failed(self, job: MoeJob, facts: Mapping[str, Fact]) -> Why[ChangeReason]:  # noqa: ARG002
        return Why("run_failed", facts)

    def _why_done(self, job: MoeJob) -> Why[ChangeReason]:  # noqa: ARG002
        return Why("ended")

    def _quiet_after_start_s(self, job: MoeJob) -> float:
        """Return the time until a service ends: it may be silent until then."""
        if not isinstance(job.workload, MoeServeWorkload):
            return 0.0
        ends_s = math.inf if job.until_s is None else job.until_s
        return min(max(ends_s - self.time_s, 0.0), _LONGEST_QUIET_S)

    def _let_go(self, job: MoeJob) -> None:
        job.had_s, job.since_s = job.had_ranks_s(self.time_s), self.time_s

    def _gone(self, job: MoeJob, node: str) -> None:
        self.gpus.give_back(job.job_id, (node,))

    def _over(self, job: MoeJob) -> None:
        user = job.job.user
        self.sizes -= Counter((job.workload.ranks,))
        if user not in self.room.held:
            self.turns.leave(user)
