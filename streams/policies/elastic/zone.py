"""A zone of elastic jobs."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from schemas.base import Event, Outcome
from schemas.cells import Node
from schemas.decisions import JobQuoted
from schemas.elastic.outcomes import QueuedJob, ResizeReason
from schemas.elastic.settings import ElasticPolicy
from schemas.elastic.workload import MAX_WORKERS, ElasticWorkload
from schemas.fleet import RunFailed, RunReport
from schemas.jobs import JobQuoteRequested
from schemas.solves import SolveFinished
from solvers.elastic.cluster import Cluster
from solvers.elastic.lent import hosted_job, lent_by
from streams.cell.jobs import Job
from streams.cell.nodes import NodeChange
from streams.cell.states import from_state, state_of
from streams.policies.elastic.clearing import ClearedServers
from streams.policies.elastic.forecast import RoundTimes, forecast
from streams.policies.elastic.invariants import broken_invariants
from streams.policies.elastic.job import ElasticJob, QueueEntry
from streams.policies.elastic.rounds import Rounds
from streams.policies.elastic.schemes import choice_of, scheme_of
from streams.policies.elastic.sizes import LeastDemand, ServerSizes
from streams.policies.elastic.staffing import ROUNDS_BETWEEN, Staffing, staffed
from streams.policies.elastic.turns import QueueTurns
from streams.policies.elastic.workforce import Workforce
from streams.policies.gang.gangs import Why
from streams.policies.ignored import job_ending, unknown_solve
from streams.policies.orders import OrderClock
from streams.policies.policy import BrokenPromise, ZoneContext


class ElasticZone:
    """See `ZonePolicy`."""

    def __init__(self, context: ZoneContext) -> None:
        self._jobs = context.jobs
        self._outcomes = context.outcomes
        policy = cast(ElasticPolicy, context.zone.policy)
        cluster = Cluster(policy.groups_elastic_jobs, most_workers=MAX_WORKERS)
        self._orders = OrderClock(context.cell.cell, policy.order_timeout_s)
        self._workforce = Workforce(context.zone.id, cluster, context.live, self._orders, context.outcomes)
        self._turns = QueueTurns(self._workforce)
        self._states = context.nodes
        self._staffing = Staffing()
        self._arrivals = 0
        self._next_round_s = context.cell.epoch_s
        self._nodes: dict[str, Node] = {}
        """Configured nodes by id."""
        self._sizes = ServerSizes(context)
        self._configure(context)

    def submitted(self, job: Job) -> None:
        time_s = self._workforce.time_s
        queued_s = self._next_round_s if time_s is None else time_s
        entry = ElasticJob(job, self._arrivals, waits_since_s=queued_s)
        too_large = self._sizes.fault(LeastDemand.of(entry.workload), without=self._wanted)
        if too_large is not None:
            self._outcomes.add(entry.rejected(self._zone.id, "larger_than_the_zone", too_large))
            return
        if (full := self._workforce.room.refuse(entry)) is not None:
            self._outcomes.add(entry.rejected(self._zone.id, "cell_full", full))
            return
        self._arrivals += 1
        waiting, running_s = self._workforce.jobs_without_workers, QueueEntry.of(entry).shortest_s
        self._outcomes.add(
            entry.admitted(self._zone.id, QueuedJob(jobs_waiting=waiting, running_s=running_s))
        )
        self._workforce.add(entry)
        self._workforce.has_changed = True

    def withdrawn(self, job: Job) -> None:
        entry = self._workforce.jobs[job.job_id]
        if entry.is_ending:
            self._outcomes.add(job_ending(job.job_id))
        else:
            entry.withdraw()
            self._workforce.end(entry, Why("stopped", {"case": "withdrawn"}))

    def quote(self, request: JobQuoteRequested) -> Outcome:
        workload = cast(ElasticWorkload, request.workload)
        too_large = self._sizes.fault(LeastDemand.of(workload), without=self._wanted)
        if too_large is not None:
            return JobQuoted(
                quote_id=request.quote_id,
                zone=self._zone.id,
                reason="larger_than_the_zone",
                facts=too_large,
            )
        return JobQuoted(
            quote_id=request.quote_id,
            zone=self._zone.id,
            reason="plan_found",
            evidence=forecast(
                workload,
                self._workforce,
                self._turns,
                self._rounds.usable_pools(workload),
                RoundTimes(self._next_round_s, self._policy.interval_s, self._rounds.patience_s),
            ),
        )

    def run_changed(self, job: Job, report: RunReport) -> None:
        self._workforce.report(self._workforce.jobs[job.job_id], report)

    def run_refused(self, job: Job, failed: RunFailed) -> None:
        self._workforce.report(self._workforce.jobs[job.job_id], failed, backs_off=True)

    def nodes_changed(self, change: NodeChange) -> None:
        if self._sizes.is_own(change.node):
            self._open_and_close((*self._wanted_own, change.node))
        else:
            self._open_or_close(change.node)
        self._workforce.has_changed = True
        if change.status in ("down", "restarted"):
            why = Why[ResizeReason]("node_lost", {"node": change.node, "status": change.status})
            self._workforce.lose_runs(self._workforce.jobs_on(change.node), change.node, why, change.runs)

    def choose_returns(self, servers: Sequence[str], count: int, due_s: float) -> Sequence[str]:  # noqa: ARG002
        return self._choose(lent_by(self._workforce.cluster, servers), count).servers

    def broken_promise(self, context: ZoneContext) -> BrokenPromise | None:
        sizes = ServerSizes(context)
        for shape in sorted(self._workforce.shapes):
            fault = sizes.fault(shape)
            if fault is not None:
                return {"case": "job_never_runs", **fault}
        for server in self._altered(context.zone.nodes, sizes):
            if not self._workforce.cluster.server(server).is_empty:
                return {"case": "server_in_use", "server": server}
        return None

    def reconfigured(self, context: ZoneContext) -> None:
        self._configure(context)
        self._workforce.has_changed = True

    def free_to_leave(self, nodes: Sequence[str]) -> list[str]:
        idle = [node for node in nodes if not self._workforce.is_busy(node)]
        needed = set(self._sizes.needed(idle, self._workforce.shapes))
        return [node for node in idle if node not in needed]

    def take(self, event: Event) -> None:
        raise AssertionError(f"{event.TYPE}: the policy registers no events of its own")

    def wake(self, time_s: float) -> None:
        self._workforce.time_s = time_s
        if self._orders.advance(time_s):
            self._workforce.give_up_silent()
        self._workforce.has_changed |= self._workforce.end_retries()
        if self._wanted:
            self._vacate()
        if time_s < self._next_round_s:
            return
        interval_s = self._policy.interval_s
        self._next_round_s = (math.floor(time_s / interval_s) + 1) * interval_s
        if self._workforce.has_changed or self._rounds.has_turns_due:
            self._workforce.has_changed, self._staffing.has_changed = False, True
            self._open_and_close(self._wanted_own)
            self._rounds.allocate()
        if self._staffing.is_due(time_s):
            self._staffing.note_report(time_s + ROUNDS_BETWEEN * interval_s)
            on_loan = [node for node in self._workforce.cluster.servers() if self._is_borrowed(node)]
            self._outcomes.add(staffed(self._zone.id, self._workforce, self._turns, on_loan, self._choose))

    def solved(self, answer: SolveFinished) -> None:
        self._outcomes.add(unknown_solve(answer))

    def broken_invariants(self) -> Iterator[str]:
        yield from broken_invariants(self._zone.id, self._workforce, self._jobs)

    def describe(self) -> dict[str, Any]:
        cluster = self._workforce.cluster
        return {
            **self._workforce.describe(),
            "nodes": {server: self._workforce.describe_server(server) for server in cluster.servers()},
            "leaving": self._wanted,
            "turns": self._turns.describe(),
            "next_round_s": self._next_round_s,
        }

    def state(self) -> dict[str, Any]:
        return {
            "jobs": [state_of(job) for job in self._workforce.jobs.values()],
            "cluster": self._workforce.cluster.state(),
            "arrivals": self._arrivals,
            "next_round_s": self._next_round_s,
            "changed": self._workforce.has_changed,
            "turns": self._turns.state(),
            "time_s": self._workforce.time_s,
            "staffing": [self._staffing.has_changed, self._staffing.next_s],
            "orders": self._orders.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._arrivals = state["arrivals"]
        self._next_round_s, self._workforce.has_changed = state["next_round_s"], state["changed"]
        self._turns.restore(state["turns"])
        self._workforce.time_s = state["time_s"]
        self._orders.restore(state["orders"])
        self._staffing.has_changed, self._staffing.next_s = state["staffing"]
        self._workforce.cluster.restore(state["cluster"])
        for packed in state["jobs"]:
            self._workforce.add(from_state(ElasticJob, packed, self._jobs))

    def _altered(self, nodes: Iterable[Node], sizes: ServerSizes) -> list[str]:
        """Return the zone's servers whose pool or size changes."""
        cluster, same_kinds = self._workforce.cluster, sizes.kinds == self._sizes.kinds
        altered = []
        for node in nodes:
            known = self._nodes.get(node.id)
            if known is None or (same_kinds and (known is node or known == node)):
                continue
            server = cluster.server(node.id)
            if sizes.place_of(node) != (server.pool, server.gpus, server.workers_per_worker):
                altered.append(node.id)
        return altered

    def _open_and_close(self, nodes: Iterable[str]) -> None:
        """Open or close nodes for jobs. A node that is to leave stays open if jobs need it, since they are
        promised the zone's own servers."""
        needed = set(self._sizes.needed(self._wanted_own, self._workforce.shapes))
        for node in nodes:
            self._open_or_close(node, node in needed)

    def _open_or_close(self, node: str, is_needed: bool = False) -> None:
        """Open or close a node for jobs.

        Args:
            is_needed: whether a job would never run without it.
        """
        if self._states.is_open(node, although_leaving=is_needed):
            self._workforce.cluster.open(node)
        else:
            self._workforce.cluster.close(node)

    @property
    def _wanted(self) -> dict[str, float | None]:
        """Nodes that are to leave, with the times by which they are due; the next tick clears them
        together."""
        return self._states.due_to_leave(self._nodes)

    @property
    def _wanted_own(self) -> list[str]:
        """The zone's own training servers that are to leave."""
        return [node for node in self._wanted if self._sizes.is_own(node)]

    def _is_borrowed(self, node: str) -> bool:
        """Return whether a node is on loan and not reclaimed."""
        return node in self._loans and node not in self._states.leaving

    def _vacate(self) -> None:
        """Clear the servers that are to leave. For servers that are not due, no job is preempted."""
        affected: dict[str, list[str]] = {}
        wanted = self._wanted
        for node in wanted:
            for job in self._workforce.jobs_on(node):
                if node in job.members:
                    affected.setdefault(job.job.job_id, []).append(node)
        before_clearing = len(self._outcomes)
        cleared = ClearedServers(self._zone.id, wanted)
        for job_id, nodes in affected.items():
            job = self._workforce.jobs[job_id]
            due = [node for node in nodes if wanted[node] is not None]
            if due and hosted_job(self._workforce.cluster, job_id).is_preempted_without(nodes):
                nodes = due  # the others are not due
            dues_s = [due_s for node in nodes if (due_s := wanted[node]) is not None]
            why = Why[ResizeReason]("servers_reclaimed", {"servers": tuple(nodes)}, min(dues_s, default=None))
            before = self._workforce.gpus_of(job)
            self._workforce.leave_servers(job, nodes, why)
            cleared.note(job, before)
        if len(self._outcomes) > before_clearing:
            self._workforce.has_changed = True
            cluster = self._workforce.cluster
            lodgers = {job for server in cluster.servers("loaned") for job in cluster.server(server).jobs}
            spared_jobs = len(lodgers - affected.keys())
            self._outcomes.insert(before_clearing, cleared.outcome(spared_jobs))

    def _configure(self, context: ZoneContext) -> None:
        """Apply a configuration: the servers and the settings."""
        self._zone, self._loans = context.zone, context.loans
        self._policy = cast(ElasticPolicy, context.zone.policy)
        self._orders.timeout_s = self._policy.order_timeout_s
        sizes, cluster = ServerSizes(context), self._workforce.cluster
        cluster.separate_groups(self._policy.groups_elastic_jobs)
        present = {node.id: node for node in context.zone.nodes}
        gone = [server for server in self._nodes if server not in present]
        altered = self._altered(present.values(), sizes)
        self._sizes = sizes
        for server in (*gone, *altered):
            cluster.remove_server(server)
        self._turns.forget((*gone, *altered))
        for server in (*(id for id in present if id not in self._nodes), *altered):
            cluster.add_server(server, *sizes.place_of(present[server]))
        self._nodes = present
        self._open_and_close(altered)
        self._rounds = Rounds(self._policy, scheme_of(self._policy), self._workforce, self._turns, sizes)
        self._choose = choice_of(self._policy)
