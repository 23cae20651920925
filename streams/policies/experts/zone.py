"""A zone of mixture-of-experts models."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from schemas.base import Event, Outcome
from schemas.experts.outcomes import QueuedRanks
from schemas.experts.outcomes import RanksChangeReason as ChangeReason
from schemas.experts.reports import RoutingReport
from schemas.experts.settings import ExpertsPolicy
from schemas.facts import Facts
from schemas.fleet import RunFailed, RunReport
from schemas.jobs import JobQuoteRequested
from schemas.solves import SolveFinished
from streams.cell.jobs import Job
from streams.cell.nodes import NodeChange
from streams.policies.experts.invariants import broken_invariants
from streams.policies.experts.job import MoeJob
from streams.policies.experts.ranks import Ranks
from streams.policies.experts.routing import ExpertRouting
from streams.policies.gang.gangs import Why
from streams.policies.gpus import Gpus
from streams.policies.ignored import job_ending, no_such_run, unknown_solve
from streams.policies.orders import OrderClock
from streams.policies.policy import BrokenPromise, ZoneContext


class ExpertsZone:
    """See `ZonePolicy`. Jobs begin, and services end in time, on ticks of the clock."""

    def __init__(self, context: ZoneContext) -> None:
        self._jobs = context.jobs
        self._outcomes = context.outcomes
        self._gpus = Gpus()
        timeout_s = cast(ExpertsPolicy, context.zone.policy).order_timeout_s
        self._orders = OrderClock(context.cell.cell, timeout_s)
        self._ranks = Ranks(context.zone.id, self._gpus, context.live, self._orders, context.outcomes)
        self._ranks.time_s = context.cell.epoch_s
        self._routing = ExpertRouting(cast(ExpertsPolicy, context.zone.policy), self._ranks, context.outcomes)
        self._states = context.nodes
        self._configure(context)

    def submitted(self, job: Job) -> None:
        entry = MoeJob(job, self._ranks.arrivals, since_s=self._ranks.time_s)
        ranks = entry.workload.ranks
        room = self._own_devices - sum(self._own.get(node, 0) for node in self._wanted)
        if ranks > room:
            facts: Facts = {"ranks": ranks, "own_devices": room}
            self._outcomes.add(entry.rejected(self._zone.id, "larger_than_the_zone", facts))
            return
        if (full := self._ranks.room.refuse(entry)) is not None:
            self._outcomes.add(entry.rejected(self._zone.id, "cell_full", full))
            return
        self._ranks.arrivals += 1
        place = QueuedRanks(jobs_waiting=self._ranks.jobs_without_ranks, ranks=ranks)
        self._outcomes.add(entry.admitted(self._zone.id, place))
        self._ranks.add(entry)
        self._ranks.turns.join(job.user)

    def withdrawn(self, job: Job) -> None:
        entry = self._ranks.jobs[job.job_id]
        if entry.is_ending:
            self._outcomes.add(job_ending(job.job_id))
        else:
            entry.withdraw()
            self._ranks.end(entry, Why("withdrawn"))

    def quote(self, request: JobQuoteRequested) -> Outcome:
        raise AssertionError(f"quote {request.quote_id}: the policy quotes nothing")

    def run_changed(self, job: Job, report: RunReport) -> None:
        self._hear(job, report)

    def run_refused(self, job: Job, failed: RunFailed) -> None:
        self._hear(job, failed, backs_off=True)

    def _hear(self, job: Job, report: RunReport, backs_off: bool = False) -> None:
        entry = self._ranks.jobs[job.job_id]
        if not isinstance(report, RoutingReport):
            self._ranks.report(entry, report, backs_off)
        elif report.run_id == entry.run_id and report.node in (*entry.working, *entry.leaving):
            self._routing.report(entry, report)
        else:
            self._outcomes.add(no_such_run(report))

    def nodes_changed(self, change: NodeChange) -> None:
        self._gpus.set_open(change.node, self._states.is_open(change.node))
        self._ranks.has_changed = True
        if change.status in ("down", "restarted"):
            why = Why[ChangeReason]("node_lost", {"node": change.node, "status": change.status})
            self._ranks.lose_runs(self._jobs_on(change.node), change.node, why, change.runs)
        self._vacate()

    def choose_returns(self, servers: Sequence[str], count: int, due_s: float) -> Sequence[str]:  # noqa: ARG002
        return sorted(servers, key=lambda node: (len(self._gpus.holders(node)), node))[:count]

    def broken_promise(self, context: ZoneContext) -> BrokenPromise | None:
        gpus = Gpus()
        gpus.configure(context.zone)
        room = sum(count for node, count in gpus.nodes.items() if node not in context.loans)
        too_large = [job for job in self._ranks.jobs.values() if job.workload.ranks > room]
        if too_large:
            return {
                "case": "jobs_never_run",
                "jobs": len(too_large),
                "job_id": too_large[0].job_id,
                "ranks": too_large[0].workload.ranks,
                "own_devices": room,
            }
        for node, count in gpus.nodes.items():
            held = self._held_on(node)
            if held > count:
                return {"case": "devices_in_use", "node": node, "devices": count, "held_devices": held}
        return None

    def reconfigured(self, context: ZoneContext) -> None:
        self._configure(context)
        # A node that has joined may be down: its change follows, so nothing begins before the next tick.

    def free_to_leave(self, nodes: Sequence[str]) -> list[str]:
        idle = [node for node in nodes if not self._gpus.holders(node)]
        needed = set(self._needed(idle))
        return [node for node in idle if node not in needed]

    def take(self, event: Event) -> None:
        raise AssertionError(f"{event.TYPE}: is a report about a run")

    def wake(self, time_s: float) -> None:
        self._ranks.time_s = time_s
        if self._orders.advance(time_s):
            self._ranks.give_up_silent()
        over = [job for job in self._ranks.jobs.values() if _is_over(job, time_s)]
        for job in over:
            job.is_time_over = True
            self._ranks.end(job, Why("ended"))
        self._vacate()
        self._ranks.begin_all()

    def solved(self, answer: SolveFinished) -> None:
        self._outcomes.add(unknown_solve(answer))

    def broken_invariants(self) -> Iterator[str]:
        yield from broken_invariants(self._ranks, self._jobs)

    def describe(self) -> dict[str, Any]:
        return {
            **self._ranks.describe(),
            "nodes": self._gpus.describe(),
            "leaving": list(self._wanted),
            "turns": self._ranks.turns.numbers,
            "held_devices": self._ranks.held_devices,
        }

    def state(self) -> dict[str, Any]:
        return {
            "jobs": [job.to_state() for job in self._ranks.jobs.values()],
            "turns": self._ranks.turns.state(),
            "time_s": self._ranks.time_s,
            "arrivals": self._ranks.arrivals,
            "closed": self._gpus.state(),
            "has_changed": self._ranks.has_changed,
            "orders": self._orders.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._ranks.time_s, self._ranks.arrivals = state["time_s"], state["arrivals"]
        self._gpus.restore(state["closed"])
        self._orders.restore(state["orders"])
        for packed in state["jobs"]:
            self._ranks.add(MoeJob.of_state(packed, self._jobs, self._routing.rule))
        self._ranks.turns.restore(state["turns"])
        self._ranks.has_changed = state["has_changed"]

    def _jobs_on(self, node: str) -> list[MoeJob]:
        """Return the jobs on a node by submission, the only order that a restored cell keeps."""
        jobs = (self._ranks.jobs[job_id] for job_id in self._gpus.holders(node))
        return sorted(jobs, key=lambda job: job.arrival)

    def _held_on(self, node: str) -> int:
        jobs = self._jobs_on(node)
        return sum(job.members.get(node, 0) + job.leaving_ranks.get(node, 0) for job in jobs)

    def _needed(self, nodes: Iterable[str]) -> Iterator[str]:
        """Yield the nodes without which a job would never run, in the given order: nodes that are not needed
        count as gone for those after them."""
        spare = self._own_devices - max(self._ranks.sizes, default=0)
        for node in nodes:
            devices = self._own.get(node, 0)
            if devices > spare:
                yield node
            else:
                spare -= devices

    @property
    def _wanted(self) -> dict[str, float | None]:
        """Nodes that are to leave, with the times by which they are due."""
        return self._states.due_to_leave(self._gpus.nodes)

    def _vacate(self) -> None:
        """Close nodes that are to leave, except those that jobs need, and preempt their jobs: at once if the
        node is due, otherwise if there is room elsewhere."""
        wanted = self._wanted
        needed = set(self._needed(wanted))
        for node in wanted:
            self._gpus.set_open(node, self._states.is_open(node, although_leaving=node in needed))
        for node, by_s in wanted.items():
            for job in self._jobs_on(node):
                is_awaited = by_s is not None
                if job.members and node not in needed and (is_awaited or self._fits_elsewhere(job)):
                    why = Why[ChangeReason]("preempted", {"node": node})
                    self._ranks.put_back(job, why)

    def _fits_elsewhere(self, job: MoeJob) -> bool:
        room = self._gpus.idle() + self._gpus.held_in_open(job.members)
        return room - self._ranks.held_devices >= job.workload.ranks

    def _configure(self, context: ZoneContext) -> None:
        """Apply a configuration: the nodes and the settings."""
        self._zone = context.zone
        policy = cast(ExpertsPolicy, context.zone.policy)
        self._gpus.configure(context.zone)
        self._own = {node: count for node, count in self._gpus.nodes.items() if node not in context.loans}
        self._own_devices = sum(self._own.values())
        self._ranks.report_interval_s = policy.report_interval_s
        self._ranks.patience_s = policy.patience_s
        self._orders.timeout_s = policy.order_timeout_s
        self._ranks.has_changed = True
        self._routing.configure(policy)


def _is_over(job: MoeJob, time_s: float) -> bool:
    return job.until_s is not None and time_s >= job.until_s and not job.is_ending
