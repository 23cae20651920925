"""A cell: the state machine that turns a ledger of events into a chained log of decisions.

`Cell.handle` is a function of the cell's state and the event alone: no clock, no I/O, no randomness. The same
ledger gives the same bytes on any machine.
"""

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pkgutil import resolve_name

import msgpack

from schemas.base import Event, Outcome, kind_of
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from schemas.codec import Decision, Envelope
from schemas.decisions import CellAccepted, EventIgnored, JobQuoted, JobRejected, RejectionReason
from schemas.fleet import CommandRefused, FleetEvent, RunReport
from schemas.jobs import JobQuoteRequested, JobSubmitted, JobWithdrawalRequested
from schemas.kind import PolicyKind
from schemas.kinds import KINDS
from schemas.registry import writer_of
from schemas.solves import SolveFinished
from streams.cell.jobs import JobRegister
from streams.cell.live_bytes import LiveBytes
from streams.cell.nodes import NodeChange, NodePool
from streams.cell.recent_ids import RecentIds
from streams.policies.policy import ZoneContext, ZonePolicy

SNAPSHOT_VERSION = 5
CHAIN_START = bytes(32)
_WRITERS_AT_LEAST = 8
"""Share the window of ids of events: none fills more than this part of it."""


@dataclass(frozen=True)
class LedgerEvent:
    """An event and its place in the ledger, which gives the decisions their ids."""

    offset: int
    envelope: Envelope

    @property
    def canonical(self) -> bytes:
        """Offset, attributes and event as one JSON object: what the chain covers, and a line of a file."""
        return b'{"offset":%d,%s' % (self.offset, self.envelope.canonical[1:])


class Cell:
    """The state of one cell, folded from its ledger."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.offset = -1
        """Ledger offset of the last event folded in."""
        self.chain = CHAIN_START
        self.time_s: float | None = None
        self.configuration: CellConfigured | None = None
        self.zones: dict[str, ZonePolicy] = {}
        self._kinds: dict[str, PolicyKind] = {}
        """By zone."""
        self.nodes = NodePool(())
        self.jobs = JobRegister(0)
        self._recent = RecentIds(0, 0)
        """Of events."""

    def handle(self, event: LedgerEvent) -> list[Decision]:
        """Fold one event in and return what is decided because of it, in order.

        Raises:
            ValueError: if the event's offset is not after the last one folded in.
        """
        if event.offset <= self.offset:
            raise ValueError(f"cell {self.name}: offset {event.offset} comes after {self.offset}")
        self.offset = event.offset
        envelope, line = event.envelope, event.canonical
        decisions: list[Decision] = []
        for index, outcome in enumerate(self._react(envelope)):
            id = f"{self.name}-{event.offset}-{index}"
            body = Decision.body(id, self.name, envelope.id, self.time_s, outcome)
            self._extend_chain(line, body)
            chain = self.chain.hex()
            decisions.append(Decision(id, self.name, envelope.id, self.time_s, outcome, chain, encoded=body))
        if not decisions:
            self._extend_chain(line, b"")
        return decisions

    def packed(self) -> bytes:
        """The whole state in msgpack: cheap enough to take between two events."""
        packed: bytes = msgpack.packb(
            {
                "version": SNAPSHOT_VERSION,
                "name": self.name,
                "offset": self.offset,
                "chain": self.chain,
                "time_s": self.time_s,
                "configuration": self.configuration and self.configuration.model_dump_json(),
                "recent": self._recent.state(),
                "nodes": self.nodes.state(),
                "jobs": self.jobs.state(),
                "zones": {id: zone.state() for id, zone in self.zones.items()},
            }
        )
        return packed

    def snapshot(self) -> bytes:
        """The whole state as one compressed record, from which `restore` goes on undisturbed."""
        return compress(self.packed())

    @classmethod
    def restore(cls, snapshot: bytes) -> "Cell":
        """The cell that `snapshot` was taken of.

        Raises:
            ValueError: if the snapshot is of another version.
        """
        state = msgpack.unpackb(zlib.decompress(snapshot))
        if state["version"] != SNAPSHOT_VERSION:
            raise ValueError(
                f"snapshot of cell {state['name']} is of version {state['version']}, this code reads "
                f"{SNAPSHOT_VERSION}: delete the snapshot, and the cell is folded from its whole ledger"
            )
        cell = cls(state["name"])
        if state["configuration"] is not None:
            cell._configure(CellConfigured.model_validate_json(state["configuration"]))
        cell.offset, cell.chain, cell.time_s = state["offset"], state["chain"], state["time_s"]
        cell._recent.restore(state["recent"])
        cell.nodes.restore(state["nodes"])
        cell.jobs.restore(state["jobs"])
        for id, zone in cell.zones.items():
            zone.restore(state["zones"][id])
        return cell

    def _extend_chain(self, event: bytes, decision: bytes) -> None:
        self.chain = hashlib.blake2b(self.chain + event + decision, digest_size=32).digest()

    def _react(self, envelope: Envelope) -> Iterator[Outcome]:
        event = envelope.event
        if self.configuration is None:
            if isinstance(event, CellConfigured):
                self._configure(event)
                self._recent.note(writer_of(event), envelope.id)
                yield CellAccepted(reason="first_configuration", zones=tuple(self.zones))
            elif isinstance(event, JobSubmitted | JobQuoteRequested):
                yield _refused(event, "cell_not_configured", f"cell {self.name} has no configuration yet")
            else:
                yield EventIgnored(
                    reason="cell_not_configured", detail=f"{event.TYPE} before any configuration"
                )
        elif not self._recent.note(writer_of(event), envelope.id):
            yield EventIgnored(
                reason="duplicate_event",
                detail=f"event {envelope.id} of {writer_of(event)} was already folded in",
            )
        else:
            yield from self._dispatch(event)

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
            case CellConfigured():
                yield EventIgnored(
                    reason="cell_already_configured", detail=f"cell {self.name} keeps its first configuration"
                )
            case _:
                yield from self._pass_on(event)

    def _configure(self, configuration: CellConfigured) -> None:
        self.configuration = configuration
        window = configuration.duplicate_window_events
        self._recent = RecentIds(window, -(-window // _WRITERS_AT_LEAST))
        self.jobs = JobRegister(window)
        self.nodes = NodePool(configuration.zones)
        live = LiveBytes(configuration.live_jobs_bytes)
        for zone in configuration.zones:
            kind = self._kinds[zone.id] = KINDS[zone.policy.kind]
            context = ZoneContext(configuration, zone, self.jobs.live, live)
            self.zones[zone.id] = resolve_name(kind.zone)(context)

    def _decided(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """What a zone decides, kept in the register of jobs."""
        for outcome in outcomes:
            self.jobs.note(outcome)
            yield outcome

    def _tick(self, time_s: float) -> Iterator[Outcome]:
        if self.time_s is not None and time_s < self.time_s:
            yield EventIgnored(
                reason="clock_went_back", detail=f"it is {self.time_s} s, the tick says {time_s} s"
            )
            return
        self.time_s = time_s
        for zone in self.zones.values():
            yield from self._decided(zone.wake(time_s))

    def _submit(self, event: JobSubmitted) -> Iterator[Outcome]:
        # Before all else: no refusal may be taken for the end of another job under this id.
        if self.jobs.knows(event.job_id, event.user):
            yield _refused(event, "duplicate_job", f"job {event.job_id} was decided before")
        elif (refusal := self._refusal(event)) is not None:
            yield _refused(event, *refusal)
        else:
            job = self.jobs.submit(event)
            yield from self._decided(self.zones[event.zone].submitted(job))
            self.jobs.remember(job)

    def _quote(self, event: JobQuoteRequested) -> Outcome:
        refusal = self._refusal(event)
        return self.zones[event.zone].quote(event) if refusal is None else _refused(event, *refusal)

    def _refusal(self, event: JobSubmitted | JobQuoteRequested) -> tuple[RejectionReason, str] | None:
        """Why no zone is asked about a job or a quote, if none is."""
        kind = self._kinds.get(event.zone)
        if kind is None:
            return "unknown_zone", f"cell {self.name} has no zone {event.zone}"
        if type(event.workload) not in kind.workloads:
            runs = ", ".join(map(kind_of, kind.workloads))
            return "workload_not_taken", f"zone {event.zone} runs {runs}, not {event.workload.kind}"
        terms = kind.terms if isinstance(event, JobSubmitted) else kind.quoted_terms
        if type(event.terms) not in terms:
            taken = ", ".join(map(kind_of, terms)) or "none"
            return "terms_not_taken", f"zone {event.zone} takes {taken} here, not {event.terms.kind}"
        return None

    def _withdraw(self, event: JobWithdrawalRequested) -> Iterator[Outcome]:
        job = self.jobs.live.get(event.job_id)
        if job is None:
            yield _unknown_job(event.job_id)
        elif job.user != event.user:
            yield EventIgnored(reason="not_the_owner", detail=f"job {event.job_id} is of another user")
        else:
            yield from self._decided(self.zones[job.zone].withdrawn(job))

    def _hear(self, event: FleetEvent) -> Iterator[Outcome]:
        zone = self.nodes.zone_of(event.node)
        if zone is None:
            yield EventIgnored(reason="unknown_node", detail=f"cell {self.name} has no node {event.node}")
            return
        for news in self.nodes.take(event):
            if isinstance(news, NodeChange):
                yield from self._decided(self.zones[zone].nodes_changed(news))
            else:
                yield news
        if isinstance(event, CommandRefused):
            detail = f"node {event.node} refuses command {event.command_id}, {event.reason}: {event.detail}"
            yield EventIgnored(reason="command_refused", detail=detail)
        elif isinstance(event, RunReport):
            job = self.jobs.live.get(event.job_id)
            if job is None:
                yield _unknown_job(event.job_id)
            else:
                yield from self._decided(self.zones[job.zone].run_changed(job, event))

    def _solved(self, event: SolveFinished) -> Iterator[Outcome]:
        zone = self.zones.get(event.zone)
        if zone is None:
            yield EventIgnored(
                reason="unknown_solve", detail=f"cell {self.name} has no zone {event.zone} to ask a solver"
            )
        else:
            yield from self._decided(zone.solved(event))

    def _pass_on(self, event: Event) -> Iterator[Outcome]:
        """Give an event of a policy's own to the zones that take it."""
        takers = [
            self.zones[id]
            for id, kind in self._kinds.items()
            if any(type(event) is one.event for one in kind.inputs)
        ]
        for zone in takers:
            yield from self._decided(zone.take(event))
        if not takers:
            yield EventIgnored(
                reason="no_zone_takes_it", detail=f"cell {self.name} has no zone that takes {event.TYPE}"
            )


def compress(packed: bytes) -> bytes:
    """Turn a packed state into a snapshot. Frees the interpreter while it runs, so a thread may do it."""
    return zlib.compress(packed, level=1)


def _refused(event: JobSubmitted | JobQuoteRequested, reason: RejectionReason, detail: str) -> Outcome:
    """The answer where no zone was asked."""
    if isinstance(event, JobQuoteRequested):
        return JobQuoted(quote_id=event.quote_id, zone=event.zone, reason=reason, detail=detail)
    return JobRejected(job_id=event.job_id, user=event.user, zone=event.zone, reason=reason, detail=detail)


def _unknown_job(job_id: str) -> EventIgnored:
    return EventIgnored(reason="unknown_job", detail=f"job {job_id} is over, or was never admitted")
