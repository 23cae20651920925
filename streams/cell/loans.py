"""The loans of a cell: servers that a zone lends to others until it reclaims them.

`Lending` has the borrowers of a zone and its conditions. The owner of the zone, the inference side, reports
its load, the idle servers, and the number of servers that it reclaims (thesis, sections 3.3 and 3.4). A
server is returned only when no job of its borrower needs it. Its due time is met, or reported as missed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from schemas.cells import Lending, Zone
from schemas.clock import tick_interval_s
from schemas.decisions import EventIgnored
from schemas.inference import CapacityOffered, CapacityReclaimed, InferenceEvent, InferenceLoadReported
from schemas.loans import LoanChanged, LoanStatus, OfferAnswered, ReclaimEnded, ReclaimPlanned
from streams.cell.changes import Changes, RefusedError
from streams.cell.layout import Layout
from streams.cell.node_record import Loan, PlannedReclaim
from streams.cell.nodes import Departure, NodePool
from streams.cell.offers import Load, share_out
from streams.cell.outcomes import Outcomes
from streams.cell.shares import returns
from streams.cell.states import Stateful
from streams.cell.zone_registry import Zones

KEPT_RECLAIMS = 64
"""Number of reclaim ids of a zone that are kept as used, besides those of open reclaims."""


@dataclass(init=False, eq=False)
class Loans(Stateful):
    """Loans of one cell. The pool of nodes has the record of each server; a reclaim is open while a record
    names it."""

    _loads: dict[str, Load]
    """By zone."""
    _last_reclaims: dict[str, list[str]]
    """Ids by owner, the latest last."""

    def __init__(self, nodes: NodePool, zones: Zones, changes: Changes, outcomes: Outcomes) -> None:
        self._nodes = nodes
        self._zones = zones
        self._changes = changes
        self._outcomes = outcomes
        self._loads, self._last_reclaims = {}, {}

    def apply(self, event: InferenceEvent, time_s: float | None) -> None:
        """Apply an event of the inference side, or ignore it with the reason."""
        try:
            lender, lending = self._lender(event.zone)
            match event:
                case InferenceLoadReported():
                    self._note_load(event, lender, self._layout.owned.epoch_s if time_s is None else time_s)
                case CapacityOffered():
                    self._lend(event, lender, lending, _known(time_s))
                case CapacityReclaimed():
                    self._reclaim(event, lending, _known(time_s))
        except RefusedError as refused:
            self._outcomes.add(EventIgnored(reason=refused.reason, facts=refused.facts))

    def pass_deadlines(self, since_s: float | None, time_s: float) -> None:
        """Decide that reclaims are overdue that were due between two ticks: by due time, then by id."""
        if since_s is None:
            return
        overdue = {reclaim for _, reclaim in self._reclaimed() if since_s <= reclaim.due_s < time_s}
        for reclaim in sorted(overdue, key=attrgetter("due_s", "id", "owner")):
            missing = (server for server, other in self._reclaimed() if other == reclaim)
            self._outcomes.add(
                ReclaimEnded(
                    owner=reclaim.owner,
                    reclaim_id=reclaim.id,
                    status="overdue",
                    missing=tuple(sorted(missing)),
                    late_s=time_s - reclaim.due_s,
                )
            )

    def follow(self, time_s: float | None) -> None:
        """Decide about servers that are back, or that operators have sent off or kept, with the present
        event."""
        touched = self._nodes.touched_loans()
        ended = {
            server: last.loan
            for server, (_, last) in touched.items()
            if last.loan is not None and server not in self._nodes.loans
        }
        last_of = {loan.reclaim: server for server, loan in ended.items()}
        for server, (before, _) in touched.items():
            if (loan := ended.get(server)) is not None:
                self._outcomes.add(_changed(server, replace(loan, since_s=_known(time_s)), "returned"))
                if loan.reclaim is not None and last_of[loan.reclaim] == server:
                    self._end_if_complete(loan.reclaim, _known(time_s))
                continue
            present = self._nodes.record(server)
            is_reclaimed = self._nodes.loans[server].reclaim is not None
            if not is_reclaimed and (before.leaves is None) != (present.leaves is None):
                self._nodes.date_loan(server, _known(time_s))
                self._decide(server)

    @property
    def _layout(self) -> Layout:
        return self._nodes.layout

    def _lender(self, id: str) -> tuple[Zone, Lending]:
        zone = next((zone for zone in self._layout.owned.zones if zone.id == id), None)
        if zone is None:
            raise RefusedError("unknown_zone", zone=id)
        if zone.lending is None:
            raise RefusedError("zone_does_not_lend", zone=id)
        return zone, zone.lending

    def _note_load(self, event: InferenceLoadReported, lender: Zone, time_s: float) -> None:
        """Keep a load report with its time, or the time of the latest tick if that is earlier: otherwise a
        report from the future would hide all that follow."""
        latest = self._loads.get(event.zone)
        if latest is not None and event.time_s < latest.time_s:
            raise RefusedError(
                "stale_load", zone=event.zone, time_s=event.time_s, latest_time_s=latest.time_s
            )
        serving = set(event.serving)
        own = tuple(node.id for node in lender.nodes if node.id in serving)
        self._loads[event.zone] = Load(min(event.time_s, time_s), event.load, own)

    def _lend(self, event: CapacityOffered, lender: Zone, lending: Lending, time_s: float) -> None:
        """Lend all servers of an offer that can be lent, and decide about each."""
        load = self._loads.get(lender.id)
        # The load may be up to one tick younger than its time.
        valid_s = lending.load_valid_s + tick_interval_s(self._layout.owned)
        if load is not None and load.time_s + valid_s < time_s:
            load = None
        lent, refusals = share_out(event.servers, lender, lending, load, self._nodes, self._zones.guarded)
        layout: Layout | None = None
        try:
            layout = self._changes.layout_for(lent)
        except RefusedError as refused:
            for server in lent:
                refusals.add(server, "breaks_a_promise", refused.facts)
            lent = {}
        self._outcomes.add(
            OfferAnswered(
                owner=lender.id, offer_id=event.offer_id, lent=tuple(lent), refused=refusals.records()
            )
        )
        for server, borrower in lent.items():
            self._nodes.begin_loan(server, borrower, lending.notice_s, time_s)
            self._decide(server)
        if layout is not None:
            departures = {server: Departure(borrower, "lent") for server, borrower in lent.items()}
            self._changes.move(departures, layout)

    def _reclaim(self, event: CapacityReclaimed, lending: Lending, time_s: float) -> None:
        """Send servers back, as many and by the time that the event requests."""
        owner, id = event.zone, event.reclaim_id
        last = self._last_reclaims.get(owner, [])
        if id in last or any((one.owner, one.id) == (owner, id) for _, one in self._reclaimed()):
            raise RefusedError("duplicate_reclaim", zone=owner, reclaim_id=id)
        on_loan = {
            server: loan
            for server, loan in self._nodes.loans.items()
            if loan.owner == owner and server not in self._nodes.leaving
        }
        if event.servers > len(on_loan):
            raise RefusedError(
                "more_than_on_loan",
                zone=owner,
                reclaim_id=id,
                servers=event.servers,
                servers_on_loan=len(on_loan),
            )
        notice_s = max(loan.notice_s for loan in on_loan.values())
        if event.due_s < time_s + notice_s:
            raise RefusedError(
                "due_too_soon",
                zone=owner,
                reclaim_id=id,
                due_s=event.due_s,
                time_s=time_s,
                notice_s=notice_s,
            )
        chosen = self._chosen(on_loan, lending, event.servers, event.due_s)
        self._last_reclaims[owner] = [*last, id][-KEPT_RECLAIMS:]
        self._outcomes.add(
            ReclaimPlanned(owner=owner, reclaim_id=id, due_s=event.due_s, servers=tuple(chosen))
        )
        # All are closed before the first is cleared, or its work would move to the next.
        reclaim = PlannedReclaim(owner, id, event.due_s)
        steps = {server: self._nodes.reclaim(server, reclaim, time_s) for server in chosen}
        for server in chosen:
            self._decide(server)
            self._changes.carry_out(steps[server])

    def _chosen(self, on_loan: Mapping[str, Loan], lending: Lending, count: int, due_s: float) -> list[str]:
        """Return the servers to send back, in the order of their choice. Each borrower returns its share:
        first servers that are not set up yet, the latest loans first, then those that its policy chooses."""
        borrowed: dict[str, list[str]] = {}
        for server, loan in on_loan.items():
            borrowed.setdefault(loan.borrower, []).append(server)
        shares = returns(lending, {zone: len(servers) for zone, servers in borrowed.items()}, count)
        chosen: list[str] = []
        for zone, share in shares.items():
            awaited = [server for server in reversed(borrowed[zone]) if self._is_awaited(server)][:share]
            others = [server for server in borrowed[zone] if not self._is_awaited(server)]
            needed = share - len(awaited)
            given = list(self._zones.guarded[zone].choose_returns(others, needed, due_s)) if needed else []
            if len(set(given)) != needed or not set(given) <= set(others):
                raise AssertionError(f"zone {zone} was to choose {needed} of {others}, and chose {given}")
            chosen += [*awaited, *given]
        return chosen

    def _is_awaited(self, server: str) -> bool:
        return self._nodes.record(server).connection == "awaited"

    def _reclaimed(self) -> Iterator[tuple[str, PlannedReclaim]]:
        """Yield the servers that are reclaimed and not back, and their reclaims. They are leaving, so that
        the loans of servers that stay are not searched."""
        for server in self._nodes.leaving:
            loan = self._nodes.loans.get(server)
            if loan is not None and loan.reclaim is not None:
                yield server, loan.reclaim

    def _decide(self, server: str) -> None:
        """Decide the status of a loan that has begun or changed."""
        loan, status = self._nodes.loans[server], self._nodes.loan_status(server)
        self._outcomes.add(_changed(server, loan, status, loan.due_s if status == "draining" else None))

    def _end_if_complete(self, reclaim: PlannedReclaim, time_s: float) -> None:
        """Decide that a reclaim has ended, unless servers of it are missing."""
        if all(other != reclaim for _, other in self._reclaimed()):
            self._outcomes.add(
                ReclaimEnded(
                    owner=reclaim.owner,
                    reclaim_id=reclaim.id,
                    status="late" if time_s > reclaim.due_s else "in_time",
                    late_s=max(time_s - reclaim.due_s, 0.0),
                )
            )


def _changed(server: str, loan: Loan, status: LoanStatus, due_s: float | None = None) -> LoanChanged:
    return LoanChanged(
        server=server,
        owner=loan.owner,
        borrower=loan.borrower,
        status=status,
        since_s=loan.since_s,
        due_s=due_s,
        reclaim_id=None if loan.reclaim is None else loan.reclaim.id,
    )


def _known(time_s: float | None) -> float:
    """Return the cell's time, from which notice is counted."""
    if time_s is None:
        raise RefusedError("no_time_yet")
    return time_s
