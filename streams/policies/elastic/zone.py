"""A zone of elastic jobs."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from schemas.base import Outcome
from schemas.cells import Node
from schemas.decisions import JobQuoted
from schemas.elastic.outcomes import QueuedJob, ResizeReason
from schemas.elastic.settings import ElasticPolicy
from schemas.elastic.workload import MAX_WORKERS, ElasticWorkload
from schemas.facts import Facts
from schemas.jobs import JobQuoteRequested
from solvers.elastic.cluster import Cluster
from solvers.elastic.lent import hosted_job, lent_by
from streams.cell.jobs import Job
from streams.cell.nodes import NodeChange
from streams.policies.elastic.clearing import ClearedServers
from streams.policies.elastic.elastic_job import ElasticJob, QueueEntry
from streams.policies.elastic.expectation import Expectation
from streams.policies.elastic.forecast import RoundTimes, forecast
from streams.policies.elastic.invariants import broken_invariants
from streams.policies.elastic.profiles import ElasticProfiles
from streams.policies.elastic.rounds import Rounds
from streams.policies.elastic.schemes import choice_of, scheme_of
from streams.policies.elastic.sizes import LeastDemand, ServerSizes
from streams.policies.elastic.staffing import ROUNDS_BETWEEN, Staffing, staffed
from streams.policies.elastic.turns import QueueTurns
from streams.policies.elastic.workforce import Workforce
from streams.policies.gang.gangs import Why
from streams.policies.gang.zone import GangZone
from streams.policies.policy import BrokenPromise, ZoneContext


class ElasticZone(GangZone[ElasticJob, ResizeReason]):
    """See `ZonePolicy`."""

    def __init__(self, context: ZoneContext) -> None:
        policy = cast(ElasticPolicy, context.zone.policy)
        cluster = Cluster(policy.groups_elastic_jobs, most_workers=MAX_WORKERS)
        self._workforce = Workforce(context, cluster)
        super().__init__(context, self._workforce, ElasticJob)
        self._turns = QueueTurns(self._workforce)
        self._staffing = Staffing()
        self._next_round_s = context.cell.epoch_s
        self._sizes = ServerSizes(context)
        self._configure(context)

    def _gang_of(self, job: Job) -> ElasticJob:
        time_s = self._workforce.time_s
        queued_s = self._next_round_s if time_s is None else time_s
        known = self._workforce.profiles.known(cast(ElasticWorkload, job.workload), job.user)
        return ElasticJob(
            job,
            self._workforce.arrivals,
            waits_since_s=queued_s,
            known=known,
            assumed_running_s=self._policy.assumed_running_s,
        )

    def _refusal(self, gang: ElasticJob) -> tuple[str, Facts] | None:
        too_large = self._too_large(gang.workload)
        return None if too_large is None else ("larger_than_the_zone", too_large)

    def _too_large(self, workload: ElasticWorkload) -> Facts | None:
        """Return why a job would never run on the zone's own servers that stay; None if it would."""
        return self._sizes.fault(LeastDemand.of(workload), without=self._leaving)

    def _admit(self, gang: ElasticJob) -> QueuedJob:
        waiting, running_s = self._workforce.jobs_without_workers, QueueEntry.of(gang).shortest_s
        return QueuedJob(
            jobs_waiting=waiting,
            running_s=running_s,
            speed_from=gang.expected.speed_from,
            duration_error_pct=gang.duration_error_pct,
        )

    def quote(self, request: JobQuoteRequested) -> Outcome:
        workload = cast(ElasticWorkload, request.workload)
        too_large = self._too_large(workload)
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
                Expectation.of(
                    workload,
                    self._workforce.profiles.known(workload, request.user),
                    self._policy.assumed_running_s,
                ),
                self._workforce,
                self._turns,
                self._rounds.usable_pools(workload),
                RoundTimes(self._next_round_s, self._policy.interval_s, self._rounds.patience_s),
            ),
        )

    def nodes_changed(self, change: NodeChange) -> None:
        if self._sizes.is_training(change.node):
            self._open_and_close((*self._leaving_training, change.node))
        else:
            self._open_or_close(change.node)
        super().nodes_changed(change)

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

    def _needed(self, nodes: Iterable[str]) -> Iterable[str]:
        return self._sizes.needed(nodes, self._workforce.shapes)

    def wake(self, time_s: float) -> None:
        self._workforce.time_s = time_s
        super().wake(time_s)
        self._workforce.end_retries()
        if self._leaving:
            self._evict()
        if time_s < self._next_round_s:
            return
        interval_s = self._policy.interval_s
        self._next_round_s = (math.floor(time_s / interval_s) + 1) * interval_s
        if self._workforce.has_changed or self._rounds.has_turns_due:
            self._workforce.note_assignment()
            self._staffing.note_round()
            self._open_and_close(self._leaving_training)
            self._rounds.allocate()
        if self._staffing.is_due(time_s):
            self._staffing.note_report(time_s + ROUNDS_BETWEEN * interval_s)
            on_loan = [node for node in self._workforce.cluster.servers() if self._is_borrowed(node)]
            self._outcomes.add(staffed(self._zone.id, self._workforce, self._turns, on_loan, self._choose))

    def broken_invariants(self) -> Iterator[str]:
        yield from super().broken_invariants()
        yield from broken_invariants(self._workforce)

    def describe(self) -> dict[str, Any]:
        cluster = self._workforce.cluster
        return {
            **super().describe(),
            "nodes": {server: self._workforce.describe_server(server) for server in cluster.servers()},
            "turns": self._turns.describe(),
            "next_round_s": self._next_round_s,
        }

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "cluster": self._workforce.cluster.state(),
            "next_round_s": self._next_round_s,
            "turns": self._turns.state(),
            "time_s": self._workforce.time_s,
            "staffing": self._staffing.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._next_round_s = state["next_round_s"]
        self._turns.restore(state["turns"])
        self._workforce.time_s = state["time_s"]
        self._staffing.restore(state["staffing"])
        self._workforce.cluster.restore(state["cluster"])
        super().restore(state)

    def _altered(self, nodes: Iterable[Node], sizes: ServerSizes) -> list[str]:
        """Return the zone's servers whose pool or size changes."""
        cluster, same_types = self._workforce.cluster, sizes.by_gpu_type == self._sizes.by_gpu_type
        altered = []
        for node in nodes:
            known = self._nodes.get(node.id)
            if known is None or (same_types and (known is node or known == node)):
                continue
            server = cluster.server(node.id)
            if sizes.place_of(node) != (server.pool, server.gpus, server.workers_per_worker):
                altered.append(node.id)
        return altered

    def _open_and_close(self, nodes: Iterable[str]) -> None:
        """Open or close nodes for jobs. Jobs are promised the zone's own servers, so a leaving node stays
        open if jobs need it."""
        needed = set(self._sizes.needed(self._leaving_training, self._workforce.shapes))
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
    def _leaving_training(self) -> list[str]:
        """The zone's own training servers that are to leave."""
        return [node for node in self._leaving if self._sizes.is_training(node)]

    def _is_borrowed(self, node: str) -> bool:
        """Return whether a node is on loan and not reclaimed."""
        return node in self._loans and node not in self._states.leaving

    def _evict(self) -> None:
        """Clear the servers that are to leave. For servers that are not due, no job is preempted."""
        affected: dict[str, list[str]] = {}
        leaving, cluster = self._leaving, self._workforce.cluster
        for node in leaving:
            for job in self._workforce.jobs_on(node):
                if node in job.members:
                    affected.setdefault(job.job.job_id, []).append(node)
        cleared = ClearedServers(self._zone.id, leaving)
        losses: list[tuple[ElasticJob, Why[ResizeReason]]] = []
        for job_id, nodes in affected.items():
            job = self._workforce.jobs[job_id]
            due, hosted = [node for node in nodes if leaving[node] is not None], hosted_job(cluster, job_id)
            if due and hosted.is_preempted_without(nodes):
                nodes = due  # the others are not due
            is_preempted = hosted.is_preempted_without(nodes)
            if is_preempted and not due:
                continue  # it stays until it is over
            if not is_preempted:
                self._workforce.vacate(job, nodes)
            cleared.note(job, () if is_preempted else self._workforce.placed(job))
            dues_s = [due_s for node in nodes if (due_s := leaving[node]) is not None]
            reason: ResizeReason = "preempted" if is_preempted else "servers_reclaimed"
            why = Why(reason, {"servers": tuple(nodes)}, min(dues_s, default=None))
            losses.append((job, why))
        if not losses:
            return
        borrowing = {job for server in cluster.servers("loaned") for job in cluster.server(server).jobs}
        self._outcomes.add(cleared.outcome(spared_jobs=len(borrowing - affected.keys())))
        for job, why in losses:
            if why.reason == "preempted":
                self._workforce.return_to_queue(job, why)
            else:
                self._workforce.follow_room(job, why)

    def _configure(self, context: ZoneContext) -> None:
        self._policy = cast(ElasticPolicy, context.zone.policy)
        sizes, cluster = ServerSizes(context), self._workforce.cluster
        cluster.separate_groups(self._policy.groups_elastic_jobs)
        before, altered = self._nodes, self._altered(context.zone.nodes, sizes)
        super()._configure(context)
        self._sizes = sizes
        self._workforce.profiles = ElasticProfiles(context, sizes)
        gone = [server for server in before if server not in self._nodes]
        for server in (*gone, *altered):
            cluster.remove_server(server)
        self._turns.forget((*gone, *altered))
        for server in (*(id for id in self._nodes if id not in before), *altered):
            cluster.add_server(server, *sizes.place_of(self._nodes[server]))
        self._open_and_close(altered)
        self._rounds = Rounds(self._policy, scheme_of(self._policy), self._workforce, self._turns, sizes)
        self._choose = choice_of(self._policy)
