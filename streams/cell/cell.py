"""A cell: the state machine that turns a ledger of events into a chained log of decisions.

`Cell.handle` is a function of the cell's state and the event alone: no clock, no I/O, no randomness. The same
ledger gives the same bytes on any machine.
"""

import hashlib
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import msgpack

from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from schemas.codec import Decision, Envelope
from schemas.decisions import CellAccepted, EventIgnored, JobQuoted, JobRejected, QuoteAccepted
from schemas.jobs import JobQuoteRequested, JobSubmitted, JobWithdrawalRequested, RejectionReason
from schemas.quotes import VendorLeft, VendorQuoted
from schemas.registry import Event, Outcome, writer_of
from schemas.solves import SolveFinished
from streams.cell.live_bytes import LiveBytes
from streams.cell.recent_ids import RecentIds
from streams.policies.auction.zone import AuctionZone
from streams.policies.policy import ZonePolicy

_POLICIES = dict.fromkeys(("auction", "eft", "ntm", "titan", "fixed_price"), AuctionZone)
"""What each kind of policy makes of a zone; every one is a `ZonePolicy`."""

SNAPSHOT_VERSION = 4
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
        self._zone_of_node: dict[str, str] = {}
        self._recent = RecentIds(0, 0)
        """Of events; as large as the configuration says."""

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

    def watched_nodes(self) -> Collection[str]:
        """Nodes that were heard and are not lost: whoever watches them says when they fall silent."""
        return [node for zone in self.zones.values() for node in zone.watched_nodes()]

    def has_node(self, node: str) -> bool:
        """Whether a zone has this node."""
        return node in self._zone_of_node

    def awaits_node(self, node: str) -> bool:
        """Whether a sign of life of this node would be news."""
        zone = self._zone_of_node.get(node)
        return zone is not None and self.zones[zone].awaits_node(node)

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
            case JobSubmitted() | JobQuoteRequested():
                yield from self._judge(event)
            case JobWithdrawalRequested():
                yield from self._withdraw(event)
            case VendorQuoted() | VendorLeft():
                yield self._quote(event)
            case SolveFinished():
                yield from self._solved(event)
            case CellConfigured():
                yield EventIgnored(
                    reason="cell_already_configured", detail=f"cell {self.name} keeps its first configuration"
                )
            case _:
                zone = self._zone_of_node.get(event.node)
                if zone is None:
                    yield EventIgnored(reason="unknown_node", detail=f"no zone has node {event.node}")
                else:
                    yield from self.zones[zone].on_fleet(event)

    def _configure(self, configuration: CellConfigured) -> None:
        self.configuration = configuration
        window = configuration.duplicate_window_events
        self._recent = RecentIds(window, -(-window // _WRITERS_AT_LEAST))
        live = LiveBytes(configuration.live_jobs_bytes)
        for zone in configuration.zones:
            self.zones[zone.id] = _POLICIES[zone.policy.kind](configuration, zone, live)
            for node in zone.nodes:
                self._zone_of_node[node.id] = zone.id

    def _tick(self, time_s: float) -> Iterator[Outcome]:
        if self.time_s is not None and time_s < self.time_s:
            yield EventIgnored(
                reason="clock_went_back", detail=f"it is {self.time_s} s, the tick says {time_s} s"
            )
            return
        self.time_s = time_s
        for zone in self.zones.values():
            yield from zone.on_clock(time_s)

    def _judge(self, event: JobSubmitted | JobQuoteRequested) -> Iterator[Outcome]:
        zone = self.zones.get(event.task.zone)
        # Before all else: no refusal may be taken for the end of another job under this id.
        if isinstance(event, JobSubmitted) and self._zone_that_knows(event):
            yield _refused(event, "duplicate_job", f"job {event.job_id} was decided before")
        elif zone is None:
            yield _refused(event, "unknown_zone", f"cell {self.name} has no zone {event.task.zone}")
        else:
            yield from zone.on_job(event)

    def _zone_that_knows(self, event: JobSubmitted | JobWithdrawalRequested) -> ZonePolicy | None:
        known = (zone for zone in self.zones.values() if zone.knows_job(event.job_id, event.user))
        return next(known, None)

    def _withdraw(self, event: JobWithdrawalRequested) -> Iterator[Outcome]:
        zone = self._zone_that_knows(event)
        if zone is None:
            yield EventIgnored(reason="unknown_job", detail=f"no zone knows job {event.job_id}")
        else:
            yield from zone.on_job(event)

    def _quote(self, event: VendorQuoted | VendorLeft) -> Outcome:
        assert self.configuration is not None
        vendors = self.configuration.vendors
        if event.vendor not in vendors:
            known = ", ".join(vendors) or "none"
            return EventIgnored(
                reason="unknown_vendor",
                detail=f"cell {self.name} has no vendor {event.vendor}: its vendors are {known}",
            )
        for zone in self.zones.values():
            zone.on_quote(event)
        return QuoteAccepted(
            vendor=event.vendor, reason="quoted" if isinstance(event, VendorQuoted) else "left"
        )

    def _solved(self, event: SolveFinished) -> Iterator[Outcome]:
        zone = self.zones.get(event.zone)
        if zone is None:
            yield EventIgnored(
                reason="unknown_solve", detail=f"cell {self.name} has no zone {event.zone} to ask a solver"
            )
        else:
            yield from zone.on_solve(event)


def compress(packed: bytes) -> bytes:
    """Turn a packed state into a snapshot. Frees the interpreter while it runs, so a thread may do it."""
    return zlib.compress(packed, level=1)


def _refused(event: JobSubmitted | JobQuoteRequested, reason: RejectionReason, detail: str) -> Outcome:
    """The answer to a task that no zone has judged."""
    if isinstance(event, JobQuoteRequested):
        return JobQuoted(
            quote_id=event.quote_id, zone=event.task.zone, reason=reason, detail=detail, offer=None
        )
    return JobRejected(
        job_id=event.job_id,
        user=event.user,
        zone=event.task.zone,
        reason=reason,
        detail=detail,
        bid_micros=event.bid_micros,
        offer=None,
        certificate=None,
    )
