"""The loans of a cell: servers that a zone lends to others until it reclaims them.

`Lending` has the borrowers of a zone and its conditions. The owner of the zone, the inference side, reports
its load, the idle servers, and the number of servers that it reclaims (thesis, sections 3.3 and 3.4). A
server is returned only when no job of its borrower needs it. Its due time is met, or reported as missed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from schemas.base import Outcome
from schemas.cells import Lending, Zone
from schemas.clock import tick_interval_s
from schemas.decisions import EventIgnored, NodeMoved, NodeStatusChanged
from schemas.inference import CapacityOffered, CapacityReclaimed, InferenceEvent, InferenceLoadReported
from schemas.loans import LoanChanged, LoanStatus, OfferAnswered, ReclaimEnded, ReclaimPlanned
from streams.cell.changes import Changes, RefusedError
from streams.cell.layout import Layout
from streams.cell.loan import Loan
from streams.cell.nodes import Departure, NodePool
from streams.cell.offers import Load, share_out
from streams.cell.outcomes import Outcomes
from streams.cell.shares import returns
from streams.cell.zones import Zones

REMEMBERED_RECLAIMS = 64
"""Number of reclaim ids of a zone that are remembered as used, besides those of open reclaims."""


@dataclass
class _Reclaim:
    """A reclaim some of whose servers are not back."""

    due_s: float
    is_overdue: bool = False
    """Whether `overdue` has been decided."""


class Loans:
    """Loans of one cell. The record of each server is kept by the pool of nodes."""

    def __init__(self, nodes: NodePool, zones: Zones, changes: Changes, outcomes: Outcomes) -> None:
        self._nodes = nodes
        self._zones = zones
        self._changes = changes
        self._outcomes = outcomes
        self._loads: dict[str, Load] = {}
        """By zone."""
        self._reclaims: dict[tuple[str, str], _Reclaim] = {}
        """By owner and id."""
        self._last_reclaims: dict[str, list[str]] = {}
        """Ids by owner, the latest last."""
        self._touched: dict[str, None] = {}
        """Servers on loan with decisions that their records have not followed yet. Empty between events."""

    @property
    def are_behind(self) -> bool:
        """Whether `follow` has work to do."""
        return bool(self._touched)

    def take(self, event: InferenceEvent, time_s: float | None) -> None:
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

    def pass_deadlines(self, time_s: float) -> None:
        """Decide that reclaims are overdue."""
        for (owner, id), reclaim in self._reclaims.items():
            if time_s > reclaim.due_s and not reclaim.is_overdue:
                reclaim.is_overdue = True
                self._outcomes.add(
                    ReclaimEnded(
                        owner=owner,
                        reclaim_id=id,
                        status="overdue",
                        missing=tuple(sorted(self._missing(owner, id))),
                        late_s=time_s - reclaim.due_s,
                    )
                )

    def note(self, outcome: Outcome) -> None:
        """Note a decision about a server on loan, for `follow`."""
        if isinstance(outcome, NodeMoved | NodeStatusChanged) and outcome.node in self._nodes.loans:
            self._touched[outcome.node] = None

    def follow(self, time_s: float | None) -> None:
        """Bring the records of servers up to date with decisions: they are back, or operators have sent them
        off or kept them."""
        touched, self._touched = self._touched, {}
        for server in touched:
            loan, departure = self._nodes.loans[server], self._nodes.leaving.get(server)
            if server not in self._layout.lent:
                self._end(server, loan, _known(time_s))
            elif departure is not None and loan.due_s is None:
                due_s = _known(time_s) + loan.notice_s
                self._outcomes.add(self._changed(server, replace(loan, since_s=_known(time_s), due_s=due_s)))
            elif departure is None and loan.reclaim_id is not None:
                # An operator has kept a server that was to leave the cell: it is still reclaimed.
                departure = Departure(loan.owner, "returned", loan.due_s)
                self._changes.carry_out(self._nodes.send_off(server, departure))
            elif departure is None and loan.due_s is not None:
                self._outcomes.add(self._changed(server, replace(loan, since_s=_known(time_s), due_s=None)))

    def broken_invariants(self) -> Iterator[str]:
        """Yield a line for each broken invariant: every server has one owner and one borrower, and a draining
        server has a due time."""
        layout, loans = self._layout, self._nodes.loans
        served = sum(len(zone.nodes) for zone in layout.zones.values())
        if not served == len(layout.zone_of) == len(layout.owner_of):
            yield f"{served} places of zones have {len(layout.zone_of)} of {len(layout.owner_of)} nodes"
        for server, loan in loans.items():
            if (layout.owner_of.get(server), layout.zone_of.get(server)) != (loan.owner, loan.borrower):
                yield f"server {server} is on loan by {loan.owner} to {loan.borrower}, and not there"
            if (server in self._nodes.leaving) != (loan.status == "draining"):
                yield f"server {server} is {loan.status}, and its zone does not clear it accordingly"
            if loan.reclaim_id is not None:
                reclaim = self._reclaims.get((loan.owner, loan.reclaim_id))
                if reclaim is None or loan.due_s != reclaim.due_s:
                    yield f"server {server} is due because of reclaim {loan.reclaim_id}, which is over"
        for owner, id in self._reclaims:
            if not self._missing(owner, id):
                yield f"reclaim {id} of zone {owner} waits for no server"
        if self._touched:
            yield f"loans have not followed their servers: {', '.join(self._touched)}"

    def state(self) -> dict[str, Any]:
        """Return everything that the pool of nodes does not keep, in types that msgpack writes."""
        return {
            "loads": [
                [zone, load.time_s, load.load, list(load.serving)] for zone, load in self._loads.items()
            ],
            "reclaims": [
                [owner, id, reclaim.due_s, reclaim.is_overdue]
                for (owner, id), reclaim in self._reclaims.items()
            ],
            "last_reclaims": self._last_reclaims,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Set the state."""
        self._loads = {
            zone: Load(time_s, load, tuple(serving)) for zone, time_s, load, serving in state["loads"]
        }
        self._reclaims = {
            (owner, id): _Reclaim(due_s, is_overdue) for owner, id, due_s, is_overdue in state["reclaims"]
        }
        self._last_reclaims = state["last_reclaims"]

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
        lent, refusals = share_out(event.servers, lender, lending, load, self._nodes, self._zones.asked)
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
            self._outcomes.add(self._changed(server, Loan(lender.id, borrower, time_s, lending.notice_s)))
        if layout is not None:
            departures = {server: Departure(borrower, "lent") for server, borrower in lent.items()}
            self._changes.move(departures, layout)

    def _reclaim(self, event: CapacityReclaimed, lending: Lending, time_s: float) -> None:
        """Send servers back, as many and by the time that the event requests."""
        owner, id = event.zone, event.reclaim_id
        last = self._last_reclaims.get(owner, [])
        if (owner, id) in self._reclaims or id in last:
            raise RefusedError("duplicate_reclaim", zone=owner, reclaim_id=id)
        on_loan = {
            server: loan
            for server, loan in self._nodes.loans.items()
            if loan.owner == owner and loan.due_s is None
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
        self._last_reclaims[owner] = [*last, id][-REMEMBERED_RECLAIMS:]
        self._reclaims[owner, id] = _Reclaim(event.due_s)
        self._outcomes.add(
            ReclaimPlanned(owner=owner, reclaim_id=id, due_s=event.due_s, servers=tuple(chosen))
        )
        # All are closed before the first is cleared, or its work would move to the next.
        departure = Departure(owner, "returned", event.due_s)
        steps = {server: self._nodes.send_off(server, departure) for server in chosen}
        for server in chosen:
            loan = replace(on_loan[server], since_s=time_s, due_s=event.due_s, reclaim_id=id)
            self._outcomes.add(self._changed(server, loan))
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
            awaited = [server for server in reversed(borrowed[zone]) if self._nodes.is_awaited(server)][
                :share
            ]
            others = [server for server in borrowed[zone] if not self._nodes.is_awaited(server)]
            wanted = share - len(awaited)
            given = list(self._zones.asked[zone].choose_returns(others, wanted, due_s)) if wanted else []
            if len(set(given)) != wanted or not set(given) <= set(others):
                raise AssertionError(f"zone {zone} was to choose {wanted} of {others}, and chose {given}")
            chosen += [*awaited, *given]
        return chosen

    def _missing(self, owner: str, reclaim_id: str) -> list[str]:
        """Return the servers of a reclaim that are not back."""
        return [
            server
            for server, loan in self._nodes.loans.items()
            if (loan.owner, loan.reclaim_id) == (owner, reclaim_id)
        ]

    def _changed(self, server: str, loan: Loan) -> LoanChanged:
        self._nodes.loans[server] = loan
        return _described(server, loan)

    def _end(self, server: str, loan: Loan, time_s: float) -> None:
        """Remove the record of a server that is back, or that has left the cell."""
        del self._nodes.loans[server]
        self._outcomes.add(_described(server, replace(loan, since_s=time_s, due_s=None), "returned"))
        reclaim = self._reclaims.get((loan.owner, loan.reclaim_id)) if loan.reclaim_id is not None else None
        if loan.reclaim_id is None or reclaim is None:
            return
        if not self._missing(loan.owner, loan.reclaim_id):
            del self._reclaims[loan.owner, loan.reclaim_id]
            self._outcomes.add(
                ReclaimEnded(
                    owner=loan.owner,
                    reclaim_id=loan.reclaim_id,
                    status="late" if reclaim.is_overdue else "in_time",
                    late_s=max(time_s - reclaim.due_s, 0.0),
                )
            )


def _described(server: str, loan: Loan, status: LoanStatus | None = None) -> LoanChanged:
    return LoanChanged(
        server=server,
        owner=loan.owner,
        borrower=loan.borrower,
        status=status or loan.status,
        since_s=loan.since_s,
        due_s=loan.due_s,
        reclaim_id=loan.reclaim_id,
    )


def _known(time_s: float | None) -> float:
    """Return the cell's time, from which notice is counted."""
    if time_s is None:
        raise RefusedError("no_time_yet")
    return time_s
