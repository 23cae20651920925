"""A cell with a configuration: the effect of each event on its jobs, nodes and zones."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from schemas.base import Event, Outcome, kind_of
from schemas.cells import CellConfigured
from schemas.changes import CellChange
from schemas.clock import ClockTicked
from schemas.codec import Envelope
from schemas.commands import RunDisowned
from schemas.decisions import EventIgnored, IgnoredReason, JobQuoted, JobRejected, RejectionReason
from schemas.facts import NO_FACTS, Fact, Facts, quoted
from schemas.fleet import (
    CommandRefused,
    FleetEvent,
    NodeOffline,
    NodeSilent,
    RunReport,
    SignOfLife,
)
from schemas.inference import InferenceEvent
from schemas.jobs import JobQuoteRequested, JobSubmitted, JobWithdrawalRequested
from schemas.profiles import ProfileAccepted, ProfileReported
from schemas.registry import writer_of
from schemas.rules import RulesAdopted
from schemas.solves import SolveFinished
from streams.cell.changes import Changes
from streams.cell.description import described_loans, described_nodes
from streams.cell.disowned import DisownedRuns
from streams.cell.jobs import Job, JobRegister
from streams.cell.layout import Layout
from streams.cell.live_bytes import LiveBytes
from streams.cell.loans import Loans
from streams.cell.nodes import NodePool
from streams.cell.outcomes import Outcomes
from streams.cell.places import CellStage
from streams.cell.profiles import ProfileStore
from streams.cell.recent_ids import RecentIds
from streams.cell.refused_profiles import refusal
from streams.cell.rules import Rules, State
from streams.cell.zone_registry import Zones
from streams.policies.ignored import unknown_solve
from streams.policies.orders import UnbegunRun

_WRITERS_AT_LEAST = 8
"""Writers that share the window of event ids: none fills more than this part of it."""


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
        self._outcomes = Outcomes()
        self._profiles = ProfileStore()
        self._zones = Zones(nodes, self.jobs, live_bytes, rules.policies, self._outcomes, self._profiles)
        self.zones = self._zones.policies
        """By id."""
        self._guarded = self._zones.guarded
        self._changes = Changes(self.nodes, self._zones, self._outcomes)
        self._loans = Loans(self.nodes, self._zones, self._changes, self._outcomes)
        self._outcomes.affect(self.jobs.note)

    @classmethod
    def first(
        cls, name: str, envelope: Envelope, configuration: CellConfigured, rules: Rules
    ) -> "ConfiguredCell":
        cell = cls(name, NodePool(Layout(configuration)), rules)
        cell._recent.note(writer_of(configuration), envelope.id)
        return cell

    @classmethod
    def restore(cls, name: str, state: State, rules: Rules) -> "ConfiguredCell":
        owned = CellConfigured.model_validate_json(state["configuration"])
        nodes = NodePool(Layout(owned))
        # Before there are zones, which ask at once which of their nodes are on loan.
        nodes.restore(state["nodes"])
        cell = cls(name, nodes, rules)
        cell.time_s = state["time_s"]
        cell._recent.restore(state["recent"])
        cell._disowned.restore(state["disowned"])
        cell._loans.restore(state["loans"])
        cell.jobs.restore(state["jobs"])
        cell._profiles.restore(state["profiles"])
        cell._zones.restore(state["zones"], cell.time_s)
        return cell

    def state(self) -> State:
        """Return everything, in types that msgpack writes."""
        return {
            "time_s": self.time_s,
            "configuration": self.nodes.layout.owned_json,
            "recent": self._recent.state(),
            "disowned": self._disowned.state(),
            "nodes": self.nodes.state(),
            "loans": self._loans.state(),
            "jobs": self.jobs.state(),
            "profiles": self._profiles.state(),
            "zones": {id: zone.state() for id, zone in self.zones.items()},
        }

    @property
    def live_jobs_bytes(self) -> int:
        """Most bytes of live jobs in a snapshot."""
        return self._zones.live_bytes

    def describe(self) -> dict[str, Any]:
        """Describe the state for an operator, in values that JSON has; see `Cell.describe`."""
        zones = self._zones.describe()
        states = Counter(job["state"] for zone in zones.values() for job in zone["jobs"].values())
        return {
            "time_s": self.time_s,
            "jobs": dict(sorted(states.items())),
            "snapshot": {
                "live_jobs_bytes": self.live_jobs_bytes,
                "most_bytes": self.nodes.layout.present.live_jobs_bytes,
            },
            "nodes": described_nodes(self.nodes),
            "loans": described_loans(self.nodes),
            "profiles": self._profiles.describe(),
            "zones": zones,
        }

    def react(self, envelope: Envelope) -> list[Outcome]:
        """Return the decisions on an event, in order. Its steps are those of step 4 of `Cell.handle`."""
        # 4.1. Ignore an event that has been decided.
        if not self._recent.note(writer_of(envelope.event), envelope.id):
            facts: Facts = {"event_id": quoted(envelope.id), "writer": writer_of(envelope.event)}
            self._outcomes.add(EventIgnored(reason="duplicate_event", facts=facts))
            return self._outcomes.drain()
        # 4.2. Pass it to the part of the cell that it is for.
        with CellStage("dispatch"):
            self._dispatch(envelope.event)
        # 4.3. Move the nodes that are to leave their zones and that no job needs any more.
        with CellStage("settle"):
            self._changes.settle()
        # 4.4. Decide about the loans of servers that have moved, or that operators have sent off or kept.
        with CellStage("follow_loans"):
            self._loans.follow(self.time_s)
        return self._outcomes.drain()

    def broken_invariants(self) -> Iterator[str]:
        """Yield a line for each broken invariant."""
        for job in self.jobs.live.values():
            if job.zone not in self.zones:
                yield f"job {job.job_id} is of zone {job.zone}, which the cell lacks"
        for id, zone in self.zones.items():
            for fault in zone.broken_invariants():
                yield f"zone {id}: {fault}"

    def _dispatch(self, event: Event) -> None:
        match event:
            case ClockTicked():
                self._tick(event.time_s)
            case JobSubmitted():
                self._submit(event)
            case JobQuoteRequested():
                self._quote(event)
            case JobWithdrawalRequested():
                self._withdraw(event)
            case FleetEvent():
                self._apply_fleet_event(event)
            case SolveFinished():
                self._solved(event)
            case ProfileReported():
                self._profiled(event)
            case InferenceEvent():
                self._loans.apply(event, self.time_s)
            case CellChange():
                self._changes.apply(event)
            case CellConfigured():
                self._ignore("cell_already_configured")
            case RulesAdopted():
                self._ignore(
                    "stale_adoption",
                    rules=event.rules,
                    previous_rules=event.previous_rules,
                    state_offset=event.state_offset,
                )
            case _:
                self._pass_on(event)

    def _ignore(self, reason: IgnoredReason, /, **facts: Fact) -> None:
        self._outcomes.add(EventIgnored(reason=reason, facts=facts))

    def _tick(self, time_s: float) -> None:
        if self.time_s is not None and time_s < self.time_s:
            self._ignore("clock_went_back", time_s=self.time_s, tick_time_s=time_s)
            return
        before_s, self.time_s = self.time_s, time_s
        self._loans.pass_deadlines(before_s, time_s)
        self._zones.wake(time_s)

    def _submit(self, event: JobSubmitted) -> None:
        job = Job.of(event)
        refusal = self._refusal_of_job(event, job)
        if refusal is not None:
            self._outcomes.add_without_effect(refused(event, *refusal))
            return
        self.jobs.add(job)
        self._guarded[event.zone].submitted(job)
        self.jobs.keep_id(job)

    def _refusal_of_job(self, event: JobSubmitted, job: Job) -> tuple[RejectionReason, Facts] | None:
        """Return the reason that no zone is asked about a job; None if one is."""
        # First, since no other refusal may count as the end of a job that has this id.
        if self.jobs.has_id(event.job_id, event.user):
            return "duplicate_job", {}
        if (refusal := self._refusal(event)) is not None:
            return refusal
        full = self.jobs.no_room_for(job)
        return None if full is None else ("cell_full", full)

    def _quote(self, event: JobQuoteRequested) -> None:
        refusal = self._refusal(event)
        self._outcomes.add(self._zones.quote(event) if refusal is None else refused(event, *refusal))

    def _refusal(self, event: JobSubmitted | JobQuoteRequested) -> tuple[RejectionReason, Facts] | None:
        """Return the reason that no zone is asked about a job or a quote; None if one is."""
        kind = self._zones.kind_of(event.zone)
        if kind is None:
            return "unknown_zone", {"zone": event.zone}
        if type(event.workload) not in kind.workloads:
            supported = tuple(map(kind_of, kind.workloads))
            return "workload_not_supported", {"workload": event.workload.kind, "supported": supported}
        terms = kind.terms if isinstance(event, JobSubmitted) else kind.quoted_terms
        if type(event.terms) not in terms:
            supported = tuple(map(kind_of, terms))
            return "terms_not_supported", {"terms": event.terms.kind, "supported": supported}
        return None

    def _withdraw(self, event: JobWithdrawalRequested) -> None:
        job = self.jobs.live.get(event.job_id)
        if job is None:
            self._ignore("unknown_job", job_id=event.job_id)
        elif job.user != event.user:
            self._ignore("not_the_owner", job_id=event.job_id)
        else:
            self._guarded[job.zone].withdrawn(job)

    def _apply_fleet_event(self, event: FleetEvent) -> None:
        if self.nodes.zone_of(event.node) is None:
            self._ignore("unknown_node", node=event.node)
            return
        self._changes.carry_out(self.nodes.apply(event))
        if isinstance(event, CommandRefused):
            self._ignore(
                "command_refused",
                node=event.node,
                command_id=event.command_id,
                refusal=event.reason,
            )
            self._refused_runs(event)
        elif isinstance(event, RunReport):
            self._apply_run_report(event)
        elif not isinstance(event, SignOfLife | NodeOffline | NodeSilent):
            self._pass_on(event)

    def _apply_run_report(self, report: RunReport) -> None:
        """Pass a report to its zone. A node that continues a run that the cell does not have is ordered to
        end it, unless it has been lately."""
        job = self.jobs.live.get(report.job_id)
        if job is None:
            self._ignore("unknown_job", job_id=report.job_id)
        has_run = job is not None and self._guarded[job.zone].run_changed(job, report)
        zone, node, run_id = self.nodes.zone_of(report.node), report.node, report.run_id
        if has_run or report.ends_run or zone is None:
            return
        if self._disowned.note(node, run_id, self.time_s):
            self._outcomes.add(RunDisowned(zone=zone, node=node, run_id=run_id, job_id=report.job_id))

    def _refused_runs(self, event: CommandRefused) -> None:
        for run in event.runs:
            job = self.jobs.live.get(run.job_id)
            if job is not None:
                failed = UnbegunRun(
                    cell=event.cell,
                    node=event.node,
                    run_id=run.run_id,
                    job_id=job.job_id,
                    samples_done=job.samples_done,
                    error="",
                    permanent=False,
                    refusal=event.reason,
                )
                self._guarded[job.zone].run_refused(job, failed)

    def _solved(self, event: SolveFinished) -> None:
        zone = self._guarded.get(event.zone)
        if zone is None:
            self._outcomes.add(unknown_solve(event))
        else:
            zone.solved(event)

    def _profiled(self, event: ProfileReported) -> None:
        zone = self.nodes.layout.zones.get(event.zone)
        if zone is None:
            self._ignore("unknown_zone", zone=event.zone)
        elif (facts := refusal(event, zone)) is not None:
            self._ignore("profile_refused", **facts)
        else:
            self._profiles.publish(event)
            accepted = ProfileAccepted(
                zone=event.zone, profiler=event.profiler, reason="recorded", points=len(event.points)
            )
            self._outcomes.add(accepted)

    def _pass_on(self, event: Event) -> None:
        """Pass an event that a policy has registered to the zones under it."""
        zones = self._zones.accepting(type(event))
        for zone in zones:
            zone.apply(event)
        if not zones:
            self._ignore("event_not_supported", event_type=event.TYPE)


def refused(
    event: JobSubmitted | JobQuoteRequested, reason: RejectionReason, facts: Mapping[str, Fact] = NO_FACTS
) -> Outcome:
    """Return the answer to a job or a quote that no zone is asked about."""
    if isinstance(event, JobQuoteRequested):
        return JobQuoted(quote_id=event.quote_id, zone=event.zone, reason=reason, facts=dict(facts))
    return JobRejected(
        job_id=event.job_id, user=event.user, zone=event.zone, reason=reason, facts=dict(facts)
    )
