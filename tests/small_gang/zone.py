"""The zone of the policy: it decides which job has processes on which nodes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from schemas.base import Outcome
from schemas.experts.outcomes import QueuedRanks
from schemas.facts import Fact, Facts
from schemas.fleet import RunFailed, RunReport
from schemas.solves import SolveFinished
from streams.cell.jobs import Job
from streams.cell.nodes import NodeChange
from streams.cell.states import from_state, state_of
from streams.policies.gang.gang import Gang
from streams.policies.gang.gangs import Why
from streams.policies.gang.single_job import SingleJobGangs
from streams.policies.ignored import job_ending, unknown_solve
from streams.policies.orders import OrderClock
from streams.policies.policy import BrokenPromise, ZoneContext, ZonePolicy
from tests.small_gang.kind import LineAssigned, LineChanged, LinePolicy, LineReleased, LineWorkload, Reason


@dataclass
class LineJob(Gang):
    """A job that fits a line."""

    @property
    def workload(self) -> LineWorkload:
        return cast(LineWorkload, self.job.workload)

    @property
    def state_bytes(self) -> int:
        return 4_096 + self.ending_bytes  # for as many names of nodes as a job has processes, three times


class SmallGangZone(SingleJobGangs[LineJob, Reason], ZonePolicy):
    """See `ZonePolicy`. Jobs start on ticks of the clock. It has no quotes and no events of its own."""

    def __init__(self, context: ZoneContext) -> None:
        orders = OrderClock(context.cell.cell, 0.0)
        super().__init__(context.zone.id, context.live, orders, context.outcomes)
        self.reconfigured(context)

    def submitted(self, job: Job) -> None:
        gang, nodes = LineJob(job, len(self.jobs)), len(self._staying)
        if gang.workload.processes > nodes:
            facts: Facts = {"ranks": gang.workload.processes, "own_devices": nodes}
            self._outcomes.add(gang.rejected(self.zone, "larger_than_the_zone", facts))
        elif (full := self.room.refuse(gang)) is not None:
            self._outcomes.add(gang.rejected(self.zone, "cell_full", full))
        else:
            waiting = sum(each.waits for each in self.jobs.values())
            place = QueuedRanks(jobs_waiting=waiting, ranks=gang.workload.processes)
            self._outcomes.add(gang.admitted(self.zone, place))
            self.jobs[job.job_id] = gang
            self.note(gang)

    def withdrawn(self, job: Job) -> None:
        gang = self.jobs[job.job_id]
        if gang.is_ending:
            self._outcomes.add(job_ending(job.job_id))
        else:
            gang.withdraw()
            self.end(gang, Why("withdrawn"))

    def run_changed(self, job: Job, report: RunReport) -> None:
        self.report(self.jobs[job.job_id], report)

    def run_refused(self, job: Job, failed: RunFailed) -> None:
        self.report(self.jobs[job.job_id], failed, backs_off=True)

    def nodes_changed(self, change: NodeChange) -> None:
        if change.status in ("down", "restarted"):
            for job in list(self.jobs.values()):
                if job.run_on(change.node) not in change.runs:
                    self.lose(job, change.node, Why("node_lost", {"node": change.node}))

    def wake(self, time_s: float) -> None:
        if self.orders.advance(time_s):
            self.give_up_silent()
        for job in self.jobs.values():
            is_asked = any(node in self._states.leaving for node in job.members)
            if is_asked and job.workload.processes <= len(self._staying):
                self.put_back(job, Why("preempted"))
        for job in self.jobs.values():
            if job.waits and job.retry_s <= self.orders.elapsed_s and not self._start(job):
                break

    def _start(self, job: LineJob) -> bool:
        """Assign a job to nodes; return whether there are enough. It has leaving ones only if it must."""
        count, held = job.workload.processes, self._held
        must = count > len(self._staying)
        idle = [node for node in self._nodes if node not in held and self._states.is_open(node, must)]
        if len(idle) < count:
            return False
        job.members, job.leader = dict.fromkeys(idle[:count], 1), idle[0]
        job.generation += 1
        job.hear(self.orders.elapsed_s)
        self.note(job)
        self._outcomes.add(self._changed(job, 0, Why("started")))
        work: dict[str, Any] = {"resume_samples": job.job.samples_done, "workload": job.workload}
        run: dict[str, Any] = {"run_id": job.run_id, "members": tuple(job.members.items())}
        for node in job.members:
            self._outcomes.add(LineAssigned(**self._ids(job), **run, **work, node=node, user=job.job.user))
        return True

    def broken_promise(self, context: ZoneContext) -> BrokenPromise | None:
        nodes = sum(node.id not in context.loans for node in context.zone.nodes)
        return {"case": "jobs_never_run", "nodes": nodes} if nodes < self._largest else None

    def reconfigured(self, context: ZoneContext) -> None:
        self._live_jobs, self._states, self._loans = context.jobs, context.nodes, context.loans
        self._nodes = [node.id for node in context.zone.nodes]
        self.orders.timeout_s = cast(LinePolicy, context.zone.policy).order_timeout_s

    def free_to_leave(self, nodes: Sequence[str]) -> list[str]:
        held = self._held
        return [node for node in nodes if node not in held][: len(self._nodes) - self._largest]

    def choose_returns(self, servers: Sequence[str], count: int, due_s: float) -> Sequence[str]:
        held = self._held
        return sorted(servers, key=lambda node: (node in held, node))[:count]

    def solved(self, answer: SolveFinished) -> None:
        self._outcomes.add(unknown_solve(answer))

    def broken_invariants(self) -> Iterator[str]:
        held = [node for job in self.jobs.values() for node in {**job.members, **job.leaving}]
        if len(held) != len(set(held)):
            yield f"two jobs hold one node: {held}"

    def state(self) -> dict[str, Any]:
        return {"jobs": [state_of(job) for job in self.jobs.values()], "orders": self.orders.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self.orders.restore(state["orders"])
        for packed in state["jobs"]:
            job = from_state(LineJob, packed, self._live_jobs)
            self.jobs[job.job_id] = job
            self.note(job)

    @property
    def _held(self) -> set[str]:
        return {node for job in self.jobs.values() for node in (*job.members, *job.leaving)}

    @property
    def _staying(self) -> set[str]:
        return {*self._nodes} - self._states.leaving.keys() - self._loans.keys()

    @property
    def _largest(self) -> int:
        return max((job.workload.processes for job in self.jobs.values()), default=0)

    def _width(self, job: LineJob) -> int:
        return len(job.members)

    def _ids(self, job: LineJob) -> dict[str, Any]:
        return {"zone": self.zone, "job_id": job.job_id, "generation": job.generation}

    def _changed(self, job: LineJob, width_before: int, why: Why[Reason]) -> Outcome:
        return LineChanged(**self._ids(job), reason=why.reason, facts=dict(why.facts))

    def _released(self, job: LineJob, node: str, generation: int, why: Why[Reason]) -> Outcome:
        return LineReleased(**{**self._ids(job), "generation": generation}, node=node, reason=why.reason)

    def _why_failed(self, job: LineJob, facts: Mapping[str, Fact]) -> Why[Reason]:
        return Why("failed" if job.given_up else "node_lost", facts)

    def _why_done(self, job: LineJob) -> Why[Reason]:
        return Why("preempted")

    def _quiet_after_start_s(self, job: LineJob) -> float:
        return 0.0
