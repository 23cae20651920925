"""A cell: the state machine that turns a ledger of events into a chained log of decisions.

`Cell.handle` is a function of the cell's state and the event alone: no clock, no I/O, no randomness. The same
ledger gives the same bytes on any machine.
"""

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TypeGuard

import msgpack

from schemas.base import Event, Outcome, kind_of
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from schemas.codec import Decision, Envelope
from schemas.decisions import CellAccepted, EventIgnored, JobQuoted, JobRejected, RejectionReason
from schemas.fleet import CommandRefused, FleetEvent, RunReport
from schemas.jobs import JobQuoteRequested, JobSubmitted, JobWithdrawalRequested
from schemas.kind import PolicyKind
from schemas.registry import writer_of
from schemas.rules import RulesAdopted
from schemas.solves import SolveFinished
from streams.cell.jobs import JobRegister
from streams.cell.live_bytes import LiveBytes
from streams.cell.nodes import NodeChange, NodePool
from streams.cell.recent_ids import RecentIds
from streams.cell.rules import (
    RULES,
    MissingRulesError,
    RuleBook,
    Rules,
    State,
    WrongStateError,
    adoption_holds,
    state_digest,
)
from streams.policies.policy import ZoneContext, ZonePolicy

SNAPSHOT_VERSION = 6
"""Of the layout of a packed state; the rules that it is of have a version of their own."""
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

    def __init__(self, name: str, book: RuleBook = RULES) -> None:
        """An empty cell. `book` has the rules that it may come under."""
        self.name = name
        self.rules: int | None = None
        """The version of the rules that decide; None before the configuration, which names the first."""
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
        self._book = book
        self._foreign: bytes | None = None
        """The packed state, where `book` lacks its rules: nothing but the adoption of others can follow."""

    def handle(self, event: LedgerEvent) -> list[Decision]:
        """Fold one event in and return what is decided because of it, in order.

        Raises:
            ValueError: if the event's offset is not after the last one folded in.
            RulesError: if the rules that are to decide it are not at hand, or were adopted from another state
                than this one. The cell stays as it is.
        """
        if event.offset <= self.offset:
            raise ValueError(f"cell {self.name}: offset {event.offset} comes after {self.offset}")
        envelope, line = event.envelope, event.canonical
        outcomes: Iterable[Outcome]
        if self._is_next_adoption(envelope.event):
            self._adopt(envelope.event, event.offset)
            outcomes = ()
        else:
            self._require_rules(envelope.event, event.offset)
            outcomes = self._react(envelope)
        self.offset = event.offset
        decisions: list[Decision] = []
        for index, outcome in enumerate(outcomes):
            id = f"{self.name}-{event.offset}-{index}"
            body = Decision.body(id, self.name, envelope.id, self.time_s, outcome)
            self._extend_chain(line, body)
            chain = self.chain.hex()
            decisions.append(Decision(id, self.name, envelope.id, self.time_s, outcome, chain, encoded=body))
        if not decisions:
            self._extend_chain(line, b"")
        return decisions

    def broken_invariants(self) -> Iterator[str]:
        """A line for each thing that should always hold of the cell and does not."""
        for job in self.jobs.live.values():
            if job.zone not in self.zones:
                yield f"job {job.job_id} is of zone {job.zone}, which the cell lacks"
        for id, zone in self.zones.items():
            for fault in zone.broken_invariants():
                yield f"zone {id}: {fault}"

    def packed(self) -> bytes:
        """The whole state in msgpack: cheap enough to take between two events.

        The same history gives the same bytes, however often the cell was restored meanwhile.
        """
        if self._foreign is not None:
            return self._foreign
        packed: bytes = msgpack.packb(
            {
                "version": SNAPSHOT_VERSION,
                "name": self.name,
                "rules": self.rules,
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
    def restore(cls, snapshot: bytes, book: RuleBook = RULES) -> "Cell":
        """The cell that `snapshot` was taken of.

        Raises:
            ValueError: if the snapshot is of another version.
            MissingRulesError: if it is of newer rules than `book` has.
        """
        return cls.unpack(zlib.decompress(snapshot), book)

    @classmethod
    def unpack(cls, packed: bytes, book: RuleBook = RULES) -> "Cell":
        """The cell that `packed` gave. If `book` lacks its rules, it can do nothing but adopt newer ones.

        Raises:
            ValueError: if the state is in another layout.
            MissingRulesError: if it is of newer rules than `book` has.
        """
        state = msgpack.unpackb(packed)
        cell, version = cls(state["name"], book), state["rules"]
        rules = book.newest if version is None else book.get(version)
        if rules is not None:
            cell._take(state, rules)
            return cell
        if version > book.newest.version:
            raise MissingRulesError(
                f"cell {cell.name} is decided by {book.lack_of(version)}: start that one, or a newer one"
            )
        cell.rules, cell.offset, cell.chain = version, state["offset"], state["chain"]
        cell._name(CellConfigured.model_validate_json(state["configuration"]))
        cell._foreign = packed
        return cell

    @property
    def awaits_rules(self) -> bool:
        """Whether newer rules are at hand than those that decide."""
        return self.rules is not None and self.rules < self._book.newest.version

    def _take(self, state: State, rules: Rules) -> None:
        """Be in this state, or in what these rules make of it."""
        if state["rules"] not in (rules.version, None) or state["version"] != SNAPSHOT_VERSION:
            state = rules.convert(state)
        if state["version"] != SNAPSHOT_VERSION:
            raise ValueError(
                f"snapshot of cell {self.name} is of version {state['version']}, this code reads "
                f"{SNAPSHOT_VERSION}: delete the snapshot, and the cell is folded from its whole ledger"
            )
        if state["configuration"] is not None:
            self._configure(CellConfigured.model_validate_json(state["configuration"]), rules)
        self.offset, self.chain, self.time_s = state["offset"], state["chain"], state["time_s"]
        self._recent.restore(state["recent"])
        self.nodes.restore(state["nodes"])
        self.jobs.restore(state["jobs"])
        for id, zone in self.zones.items():
            zone.restore(state["zones"][id])

    def _is_next_adoption(self, event: Event) -> TypeGuard[RulesAdopted]:
        return (
            isinstance(event, RulesAdopted)
            and self.rules is not None
            and adoption_holds(event, self.rules, self.offset)
        )

    def _adopt(self, adopted: RulesAdopted, offset: int) -> None:
        """Come under other rules, in the state that this one is."""
        where = f"ledger offset {offset} of cell {self.name}"
        packed = self.packed()
        digest = state_digest(packed)
        if digest != adopted.state_digest and adopted.state_layout == layout_of(packed):
            raise WrongStateError(
                f"{where}: rules {adopted.rules} were adopted from a state of digest {adopted.state_digest}, "
                f"and the ledger leads to {digest}: `millrace replay` says whether the log was altered"
            )
        rules = self._book.get(adopted.rules)
        if rules is None:
            lack = self._book.lack_of(adopted.rules, adopted.release)
            raise MissingRulesError(f"{where}: from here on it is decided by {lack}: start that one")
        self._take(msgpack.unpackb(packed), rules)
        self._foreign = None

    def _require_rules(self, event: Event, offset: int) -> None:
        """Refuse an event that rules are to decide which are not at hand."""
        if self._foreign is not None and self.rules is not None:
            raise MissingRulesError(
                f"ledger offset {offset} of cell {self.name} is to be decided by "
                f"{self._book.lack_of(self.rules)}: start that one, let it fold its ledger, stop it in good "
                "order, and then start this one again"
            )
        named = event.rules if self.configuration is None and isinstance(event, CellConfigured) else None
        if named is not None and self._book.get(named) is None:
            raise MissingRulesError(
                f"ledger offset {offset} of cell {self.name}: from here on it is decided by "
                f"{self._book.lack_of(named)}: start that one"
            )

    def _extend_chain(self, event: bytes, decision: bytes) -> None:
        self.chain = hashlib.blake2b(self.chain + event + decision, digest_size=32).digest()

    def _react(self, envelope: Envelope) -> Iterator[Outcome]:
        event = envelope.event
        if self.configuration is None:
            if isinstance(event, CellConfigured):
                rules = self._book.get(event.rules)
                assert rules is not None
                self._configure(event, rules)
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
            case RulesAdopted():
                yield EventIgnored(
                    reason="stale_adoption",
                    detail=f"rules {event.rules} were to follow rules {event.previous_rules} after ledger "
                    f"offset {event.state_offset}, and that is not where the cell is",
                )
            case _:
                yield from self._pass_on(event)

    def _configure(self, configuration: CellConfigured, rules: Rules) -> None:
        self.rules = rules.version
        self._name(configuration)
        window = configuration.duplicate_window_events
        self._recent = RecentIds(window, -(-window // _WRITERS_AT_LEAST))
        self.jobs = JobRegister(window)
        live = LiveBytes(configuration.live_jobs_bytes)
        for zone in configuration.zones:
            kind = self._kinds[zone.id] = rules.policies[zone.policy.kind]
            context = ZoneContext(configuration, zone, self.jobs.live, live)
            self.zones[zone.id] = resolve_name(kind.zone)(context)

    def _name(self, configuration: CellConfigured) -> None:
        """Know the configuration, and whose nodes are whose."""
        self.configuration = configuration
        self.nodes = NodePool(configuration.zones)

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


def layout_of(packed: bytes) -> int:
    """The version of the layout of a packed state."""
    return int(msgpack.unpackb(packed)["version"])


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
