"""A cell that has a configuration: the effect of each event on its jobs, its nodes and its zones."""

from collections.abc import Iterable, Iterator, Mapping

from schemas.base import Event, Outcome, kind_of
from schemas.cells import CellConfigured
from schemas.changes import CellChange
from schemas.clock import ClockTicked
from schemas.codec import Envelope
from schemas.commands import RunDisowned
from schemas.decisions import EventIgnored, JobQuoted, JobRejected, RejectionReason
from schemas.facts import NO_FACTS, Fact, Facts
from schemas.fleet import (
    CommandRefused,
    FleetEvent,
    NodeOffline,
    NodeSilent,
    RunFailed,
    RunReport,
    SignOfLife,
)
from schemas.inference import InferenceEvent
from schemas.jobs import JobQuoteRequested, JobSubmitted, JobWithdrawalRequested
from schemas.registry import writer_of
from schemas.rules import RulesAdopted
from schemas.solves import SolveFinished
from streams.cell.changes import Changes
from streams.cell.disowned import DisownedRuns
from streams.cell.jobs import Job, JobRegister
from streams.cell.layout import Layout
from streams.cell.live_bytes import LiveBytes
from streams.cell.loans import Loans
from streams.cell.nodes import NodePool
from streams.cell.places import staged
from streams.cell.recent_ids import RecentIds
from streams.cell.rules import Rules, State
from streams.cell.zones import Zones
from streams.policies.ignored import unknown_solve

_WRITERS_AT_LEAST = 8
"""Share the window of ids of events: none fills more than this part of it."""

_STALE = ("unknown_job", "stale_report")
"""Why a report is ignored that is of no run of the cell."""


class ConfiguredCell:
    """The state of a cell, but for its place in the ledger and its chain."""

    def __init__(self, name: str, nodes: NodePool, rules: Rules) -> None:
        self.name = name
        self.time_s: float | None = None
        layout = nodes.layout
        window = layout.owned.duplicate_window_events
        self._recent = RecentIds(window, -(-window // _WRITERS_AT_LEAST))
        """Ids of events."""
        self._disowned = DisownedRuns()
        live_bytes = LiveBytes(layout.present.live_jobs_bytes)
        self.jobs = JobRegister(window, live_bytes)
        self.nodes = nodes
        self._zones = Zones(layout, self.jobs, live_bytes, nodes.loans, rules.policies)
        self.zones = self._zones.policies
        """By id."""
        self._asked = self._zones.asked
        self._changes = Changes(name, self.nodes, self._zones)
        self._loans = Loans(name, self.nodes, self._zones, self._changes)

    @classmethod
    def first(
        cls, name: str, envelope: Envelope, configuration: CellConfigured, rules: Rules
    ) -> "ConfiguredCell":
        """The cell as its first configuration makes it."""
        cell = cls(name, NodePool(Layout(configuration)), rules)
        cell._recent.note(writer_of(configuration), envelope.id)
        return cell

    @classmethod
    def restore(cls, name: str, state: State, rules: Rules) -> "ConfiguredCell":
        """The cell that `state` was taken of."""
        owned = CellConfigured.model_validate_json(state["configuration"])
        nodes = NodePool(Layout(owned, state["nodes"]["lent"]))
        # Before there are zones, which ask at once which of their nodes are on loan.
        nodes.restore(state["nodes"])
        cell = cls(name, nodes, rules)
        cell.time_s = state["time_s"]
        cell._recent.restore(state["recent"])
        cell._disowned.restore(state["disowned"])
        cell._loans.restore(state["loans"])
        cell.jobs.restore(state["jobs"])
        cell._zones.restore(state["zones"], cell.time_s)
        return cell

    def state(self) -> State:
        """Everything, of types that msgpack writes."""
        return {
            "time_s": self.time_s,
            "configuration": self.nodes.layout.owned_json,
            "recent": self._recent.state(),
            "disowned": self._disowned.state(),
            "nodes": self.nodes.state(),
            "loans": self._loans.state(),
            "jobs": self.jobs.state(),
            "zones": {id: zone.state() for id, zone in self.zones.items()},
        }

    def react(self, envelope: Envelope) -> Iterator[Outcome]:
        """Yield the decisions on an event, in order."""
        if not self._recent.note(writer_of(envelope.event), envelope.id):
            yield EventIgnored(
                reason="duplicate_event",
                facts={"event_id": envelope.id, "writer": writer_of(envelope.event)},
            )
            return
        yield from staged("dispatch", self._dispatch(envelope.event))
        yield from staged("settle", self._decided(self._changes.settle()))
        while self._loans.are_behind:
            yield from staged("follow_loans", self._decided(self._loans.follow(self.time_s)))
            yield from staged("settle", self._decided(self._changes.settle()))

    def broken_invariants(self) -> Iterator[str]:
        """A line for each thing that should always hold of the cell and does not."""
        for job in self.jobs.live.values():
            if job.zone not in self.zones:
                yield f"job {job.job_id} is of zone {job.zone}, which the cell lacks"
        yield from self._loans.broken_invariants()
        for id, zone in self.zones.items():
            for fault in zone.broken_invariants():
                yield f"zone {id}: {fault}"

    def _dispatch(self, event: Event) -> Iterator[Outcome]:
        match event:
            case ClockTicked():
                yield from self._tick(event.time_s)
            case JobSubmitted():
                yield from self._submit(event)
            case JobQuoteRequested():
                yield self._quote(event)
            case JobWithdrawalRequested():
                yield from self._withdraw(event)
            case FleetEvent():
                yield from self._hear(event)
            case SolveFinished():
                yield from self._solved(event)
            case InferenceEvent():
                yield from self._decided(self._loans.take(event, self.time_s))
            case CellChange():
                yield from self._decided(self._changes.take(event))
            case CellConfigured():
                yield EventIgnored(reason="cell_already_configured")
            case RulesAdopted():
                yield EventIgnored(
                    reason="stale_adoption",
                    facts={
                        "rules": event.rules,
                        "previous_rules": event.previous_rules,
                        "state_offset": event.state_offset,
                    },
                )
            case _:
                yield from self._pass_on(event)

    def _decided(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """Yield decisions after jobs and loans have taken them."""
        for outcome in outcomes:
            self.jobs.note(outcome)
            self._loans.note(outcome)
            yield outcome

    def _tick(self, time_s: float) -> Iterator[Outcome]:
        if self.time_s is not None and time_s < self.time_s:
            yield EventIgnored(reason="clock_went_back", facts={"time_s": self.time_s, "tick_time_s": time_s})
            return
        self.time_s = time_s
        yield from self._loans.pass_deadlines(time_s)
        yield from self._decided(self._zones.wake(time_s))

    def _submit(self, event: JobSubmitted) -> Iterator[Outcome]:
        # Before all else: no refusal may be taken for the end of another job under this id.
        if self.jobs.knows(event.job_id, event.user):
            yield refused(event, "duplicate_job")
        elif (refusal := self._refusal(event)) is not None:
            yield refused(event, *refusal)
        elif (full := self.jobs.no_room_for(job := Job.of(event))) is not None:
            yield refused(event, "cell_full", full)
        else:
            self.jobs.add(job)
            yield from self._decided(self._asked[event.zone].submitted(job))
            self.jobs.remember(job)

    def _quote(self, event: JobQuoteRequested) -> Outcome:
        refusal = self._refusal(event)
        return self._asked[event.zone].quote(event) if refusal is None else refused(event, *refusal)

    def _refusal(self, event: JobSubmitted | JobQuoteRequested) -> tuple[RejectionReason, Facts] | None:
        """Why no zone is asked about a job or a quote, if none is."""
        kind = self._zones.kind_of(event.zone)
        if kind is None:
            return "unknown_zone", {"zone": event.zone}
        if type(event.workload) not in kind.workloads:
            taken = tuple(map(kind_of, kind.workloads))
            return "workload_not_taken", {"workload": event.workload.kind, "taken": taken}
        terms = kind.terms if isinstance(event, JobSubmitted) else kind.quoted_terms
        if type(event.terms) not in terms:
            return "terms_not_taken", {"terms": event.terms.kind, "taken": tuple(map(kind_of, terms))}
        return None

    def _withdraw(self, event: JobWithdrawalRequested) -> Iterator[Outcome]:
        job = self.jobs.live.get(event.job_id)
        if job is None:
            yield _unknown_job(event.job_id)
        elif job.user != event.user:
            yield EventIgnored(reason="not_the_owner", facts={"job_id": event.job_id})
        else:
            yield from self._decided(self._asked[job.zone].withdrawn(job))

    def _hear(self, event: FleetEvent) -> Iterator[Outcome]:
        if self.nodes.zone_of(event.node) is None:
            yield EventIgnored(reason="unknown_node", facts={"node": event.node})
            return
        yield from self._decided(self._changes.pass_on(self.nodes.take(event)))
        if isinstance(event, CommandRefused):
            yield EventIgnored(
                reason="command_refused",
                facts={
                    "node": event.node,
                    "command_id": event.command_id,
                    "refusal": event.reason,
                    "message": event.detail,
                },
            )
            yield from self._decided(self._refused_runs(event))
        elif isinstance(event, RunReport):
            yield from self._hear_run(event)
        elif not isinstance(event, SignOfLife | NodeOffline | NodeSilent):
            yield from self._pass_on(event)

    def _hear_run(self, report: RunReport) -> Iterator[Outcome]:
        """Pass a report on. A node that continues a run unknown to the cell is ordered to end it, unless it
        was lately."""
        job = self.jobs.live.get(report.job_id)
        outcomes: Iterable[Outcome] = (_unknown_job(report.job_id),)
        if job is not None:
            outcomes = self._asked[job.zone].run_changed(job, report)
        is_stale = False
        for outcome in self._decided(outcomes):
            is_stale |= isinstance(outcome, EventIgnored) and outcome.reason in _STALE
            yield outcome
        zone, node, run_id = self.nodes.zone_of(report.node), report.node, report.run_id
        if not is_stale or report.ends_run or zone is None:
            return
        if self._disowned.note(node, run_id, self.time_s):
            yield RunDisowned(zone=zone, node=node, run_id=run_id, job_id=report.job_id)

    def _refused_runs(self, event: CommandRefused) -> Iterator[Outcome]:
        for run in event.runs:
            job = self.jobs.live.get(run.job_id)
            if job is not None:
                failed = RunFailed(
                    cell=event.cell,
                    node=event.node,
                    run_id=run.run_id,
                    job_id=job.job_id,
                    samples_done=job.samples_done,
                    error=event.detail or event.reason,
                    permanent=False,
                )
                yield from self._asked[job.zone].run_refused(job, failed)

    def _solved(self, event: SolveFinished) -> Iterator[Outcome]:
        zone = self._asked.get(event.zone)
        if zone is None:
            yield unknown_solve(event)
        else:
            yield from self._decided(zone.solved(event))

    def _pass_on(self, event: Event) -> Iterator[Outcome]:
        """Give an event of a policy's own to the zones that take it."""
        takers = self._zones.that_take(type(event))
        for zone in takers:
            yield from self._decided(zone.take(event))
        if not takers:
            yield EventIgnored(reason="no_zone_takes_it", facts={"event_type": event.TYPE})


def refused(
    event: JobSubmitted | JobQuoteRequested, reason: RejectionReason, facts: Mapping[str, Fact] = NO_FACTS
) -> Outcome:
    """The answer where no zone was asked."""
    if isinstance(event, JobQuoteRequested):
        return JobQuoted(quote_id=event.quote_id, zone=event.zone, reason=reason, facts=dict(facts))
    return JobRejected(
        job_id=event.job_id, user=event.user, zone=event.zone, reason=reason, facts=dict(facts)
    )


def _unknown_job(job_id: str) -> EventIgnored:
    return EventIgnored(reason="unknown_job", facts={"job_id": job_id})
