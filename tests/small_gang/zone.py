"""The zone of the policy: it decides which job has processes on which nodes."""

from dataclasses import dataclass
from typing import cast

from schemas.base import Outcome
from streams.policies.gang.gangs import Why
from streams.policies.gang.rigid import RigidGang, RigidGangs, RigidZone
from streams.policies.policy import ZoneContext
from tests.small_gang.kind import LineAssigned, LineChanged, LineReleased, LineWorkload, QueuedLine, Reason


@dataclass
class LineJob(RigidGang):
    """A job that fits a line."""

    def __post_init__(self) -> None:
        self.workload = cast(LineWorkload, self.job.workload)

    @property
    def ranks(self) -> int:
        return self.workload.processes

    @property
    def state_bytes(self) -> int:
        return 4_096 + self.ending_bytes  # for as many names of nodes as a job has processes, three times


class LineGangs(RigidGangs[LineJob, Reason]):
    """See `RigidGangs`."""

    def _order_start(self, job: LineJob) -> None:
        order = LineAssigned(
            zone=self.zone,
            node=job.leader,
            run_id=job.run_id,
            job_id=job.job_id,
            user=job.job.user,
            generation=job.generation,
            members=tuple(job.members.items()),
            resume_samples=job.job.samples_done,
            workload=job.workload,
        )
        self._outcomes.extend(order.model_copy(update={"node": node}) for node in job.members)

    def _changed(self, job: LineJob, width_before: int, why: Why[Reason]) -> Outcome:
        return LineChanged(
            zone=self.zone,
            job_id=job.job_id,
            generation=job.generation,
            reason=why.reason,
            facts=dict(why.facts),
        )

    def _released(self, job: LineJob, node: str, generation: int, why: Why[Reason]) -> Outcome:
        return LineReleased(
            zone=self.zone,
            node=node,
            job_id=job.job_id,
            generation=generation,
            reason=job.release_reason(why.reason),
        )


class SmallGangZone(RigidZone[LineJob, Reason]):
    """See `ZonePolicy`. Jobs start on ticks of the clock, in the order of their submission."""

    def __init__(self, context: ZoneContext) -> None:
        super().__init__(context, LineGangs(context), LineJob)
        self._configure(context)

    def wake(self, time_s: float) -> None:
        super().wake(time_s)
        self._evict()
        for job in self._gangs.waiting:
            if not self._gangs.start(job):
                break

    def _admit(self, gang: LineJob) -> QueuedLine:
        return QueuedLine(jobs_waiting=len(self._gangs.waiting))
