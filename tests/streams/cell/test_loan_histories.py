"""Whatever is offered, reclaimed, lost and changed: nodes and loans as specified, and auctions that mind the
notice."""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from schemas.base import Event, Outcome
from schemas.cells import Borrower, Lending
from schemas.changes import (
    NodeCordoned,
    NodeLent,
    NodeRegistered,
    NodeRetired,
    NodeReturned,
    NodeUncordoned,
    ZoneConfigured,
)
from schemas.decisions import EventIgnored, NodeMoved
from schemas.loans import OfferAnswered
from schemas.lora_commands import SlotAssigned
from streams.cell.layout import Layout
from streams.cell.nodes import NodePool
from streams.cell.state_machine import Cell
from tests.streams.cell.loan_specification import LoanSpecification
from tests.streams.cell.node_specification import NodeSpecification
from tests.support.cells import (
    EPOCH_S,
    SLOT_S,
    CheckedBench,
    bid,
    finished,
    node_seen,
    offline,
    online,
    progressed,
    refused,
    silent,
    started,
    tick,
)
from tests.support.examples import examples
from tests.support.invariants import auctions
from tests.support.loans import NOTICE_S, SERVERS, lender, lending_cell, offered, reclaimed, reported
from tests.support.plans import held_cells

OWN = ("a1", "a2", "b1", "y1")
"""Nodes of the borrowers."""
NODES = (*SERVERS, *OWN, "nobody")
nodes = st.sampled_from(NODES)
STEPS_S = (0.25, 0.5, 1.0, 1.0, 2.0)
"""In slots: how far the clock goes on."""

NOTICES_S = (NOTICE_S, 1.25 * NOTICE_S)
AHEAD_SLOTS = (3.5, 4.0, 4.0, 4.5, 5.0, 5.0, 6.0)
"""From a reclaim to its due time."""


def unfit(node: str) -> Event:
    return online(node, base_model="other")


ORDERS = (
    lambda node, zone: NodeRetired(cell="c", node=node),
    lambda node, zone: NodeRegistered(cell="c", node=node, zone=zone, gpu_type="fast", tariff="t"),
    lambda node, zone: NodeLent(cell="c", node=node, zone=zone),
    lambda node, zone: NodeReturned(cell="c", node=node),
    lambda node, zone: NodeCordoned(cell="c", node=node),
    lambda node, zone: NodeUncordoned(cell="c", node=node),
)
"""Events of an operator about a node, and perhaps a zone."""


def orders(nodes: NodePool) -> tuple[list[Any], list[Any]]:
    """Return the departures and the loans, in their order."""
    return list(nodes.leaving.items()), list(nodes.loans.items())


class LoanHistories(RuleBasedStateMachine):
    """A cell that lends, its events, and the loans that its decisions show."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = CheckedBench()
        self.slot = 0.0
        self.number = 0
        self.specification = LoanSpecification()
        self.nodes = NodeSpecification({"z": "tiny", "y": "tiny"})
        self.runs: dict[tuple[str, int, str], tuple[int, int, int]] = {}
        """Samples before, to train and in all, by node, slot and job."""

    @initialize(lost=st.sets(st.sampled_from(OWN), max_size=4), later=st.integers(0, 6))
    def begin(self, lost: set[str], later: int) -> None:
        for zone in lending_cell().zones:
            for node in zone.nodes:
                self.nodes.join(node.id, zone.id, is_first=True)
        earlier = len(SERVERS) - later
        self.send(lending_cell(), tick(0), reported(0.0), offered(*SERVERS[:earlier], id="o"))
        if later:  # with the other notice
            self.configure(lends=True, notice_s=NOTICES_S[-1], to="z")
            self.send(offered(*SERVERS[earlier:], id="later"))
        self.send(*map(online, SERVERS[:7]), *map(offline, sorted(lost)))

    def send(self, *events: Event) -> list[Outcome]:
        return [outcome for event in events for outcome in self._send(event)]

    def _send(self, event: Event) -> list[Outcome]:
        before_s = self.bench.cell.time_s or self.time_s
        outcomes = self.bench.send(event)
        self.specification.check(before_s, self.time_s, self.notice_s, outcomes)
        self.nodes.apply(event, outcomes)
        for outcome in outcomes:
            match outcome:
                case SlotAssigned():
                    for run in outcome.runs:
                        self.runs[outcome.node, outcome.slot, run.job_id] = (
                            run.resume_samples,
                            run.quota_samples,
                            run.work_samples,
                        )
        return outcomes

    @property
    def notice_s(self) -> float:
        """Notice that the lender has configured; any where it does not lend."""
        zones = () if self.cell.configuration is None else self.cell.configuration.zones
        return next((zone.lending.notice_s for zone in zones if zone.lending is not None), NOTICE_S)

    @property
    def time_s(self) -> float:
        return EPOCH_S + self.slot * SLOT_S

    @property
    def cell(self) -> Cell:
        return self.bench.cell

    @rule(steps=st.lists(st.sampled_from(STEPS_S), min_size=1, max_size=4))
    def go_on(self, steps: list[float]) -> None:
        for step in steps:
            self.slot += step
            self.send(tick(self.slot))

    @rule(load=st.floats(0, 1), serving=st.sets(nodes, max_size=2), late=st.booleans())
    def report(self, load: float, serving: set[str], late: bool) -> None:
        self.send(reported(load, max(self.slot - late, 0.0), tuple(sorted(serving))))

    @rule(servers=st.lists(st.sampled_from((*SERVERS, *NODES)), min_size=1, max_size=6, unique=True))
    def offer(self, servers: list[str]) -> None:
        self.number += 1
        (answer, *rest) = self.send(offered(*servers, id=f"o{self.number}"))
        if isinstance(answer, EventIgnored):
            assert answer.reason == "zone_does_not_lend"
            return
        assert isinstance(answer, OfferAnswered)
        told = [*answer.lent, *(server for one in answer.refused for server in one.servers)]
        assert sorted(told) == sorted(servers), "each server is answered for"
        moved = {
            outcome.node for outcome in rest if isinstance(outcome, NodeMoved) and outcome.reason == "lent"
        }
        assert moved >= set(answer.lent)

    @rule(servers=st.integers(1, 5), ahead=st.sampled_from(AHEAD_SLOTS), repeated=st.booleans())
    def reclaim(self, servers: int, ahead: float, repeated: bool) -> None:
        self.number += 1
        event = reclaimed(servers, self.slot + ahead, id=f"r{self.number}")
        longest_s = self.specification.longest_notice_s
        for outcome in self.send(event):
            if isinstance(outcome, EventIgnored) and outcome.reason == "due_too_soon":
                assert event.due_s < self.time_s + longest_s
        if repeated and event.reclaim_id in self.specification.reclaims:
            (ignored,) = self.send(event)
            assert ignored.reason == "duplicate_reclaim"

    @rule(
        zone=st.sampled_from(("z", "y")),
        work=st.integers(20, 150),
        slots=st.integers(3, 8),
        bids=st.integers(1, 5),
    )
    def submit(self, zone: str, work: int, slots: int, bids: int) -> None:
        deadline_s = self.time_s + slots * SLOT_S
        for _ in range(bids):
            self.number += 1
            self.send(bid(f"j{self.number}", zone=zone, work_samples=work, deadline_s=deadline_s))

    @precondition(lambda self: self.runs)
    @rule(share=st.sampled_from((0.5, 1.0, 1.0, 1.0)), left_out=st.integers(0, 3))
    def run(self, share: float, left_out: int) -> None:
        """Report the results of what is assigned, except for a few runs."""
        for node, slot, job_id in sorted(self.runs)[left_out:]:
            before, quota, work = self.runs.pop((node, slot, job_id))
            done = min(before + int(quota * share), work)
            self.send(started(node, slot, before, job_id))
            if done == work:
                self.send(finished(node, slot, done, job_id))
            else:
                self.send(progressed(node, slot, done, job_id=job_id))

    @rule(
        node=nodes, kind=st.sampled_from((online, online, online, node_seen, unfit, refused, offline, silent))
    )
    def report_node(self, node: str, kind: Any) -> None:
        self.send(kind(node))

    @rule(
        node=st.sampled_from((*SERVERS, *NODES)),
        order=st.sampled_from(ORDERS),
        zone=st.sampled_from(("z", "y", "inf")),
    )
    def order(self, node: str, order: Any, zone: str) -> None:
        self.send(order(node, zone))

    @rule(lends=st.booleans(), notice_s=st.sampled_from(NOTICES_S), to=st.sampled_from("zy"))
    def configure(self, lends: bool, notice_s: float, to: str) -> None:
        terms = Lending(
            headroom=0.1,
            notice_s=notice_s,
            borrowers=(Borrower(zone=to), Borrower(zone="zy".replace(to, ""))),
        )
        present = next(held for held in self.cell.configuration.zones if held.id == "inf")
        changed = lender(lending=terms if lends else None, nodes=present.nodes)
        self.send(ZoneConfigured(cell="c", zone=changed))

    @rule()
    def restart(self) -> None:
        restored = Cell.restore(self.cell.snapshot())
        assert restored.packed() == self.cell.packed()
        if self.cell.nodes is not None:
            assert orders(restored.nodes) == orders(self.cell.nodes)
        self.bench.cell = restored

    @invariant()
    def nodes_are_as_specified(self) -> None:
        if self.cell.nodes is not None:
            described = self.cell.describe()["nodes"]
            found = {
                name: {
                    "owner": node["owner"],
                    "serves": node["zone"],
                    **{part: node[part] for part in ("connection", "membership", "scheduling")},
                }
                for name, node in described.items()
            }
            assert found == self.nodes.described

    @invariant()
    def servers_on_loan_are_as_specified(self) -> None:
        if self.cell.nodes is None:
            return
        nodes, lent = self.cell.nodes, self.specification.servers
        assert {server: (loan.owner, loan.borrower) for server, loan in nodes.loans.items()} == {
            server: (one.owner, one.borrower) for server, one in lent.items()
        }
        assert {server: nodes.zone_of(server) for server in lent} == {
            server: one.borrower for server, one in lent.items()
        }
        assert nodes.due_to_leave(lent) == self.specification.due_to_leave

    @invariant()
    def the_layout_equals_one_that_is_made_again(self) -> None:
        layout = self.cell.nodes.layout if self.cell.nodes is not None else None
        if layout is not None:
            anew = Layout(layout.owned, layout.lent)
            assert (layout.present, layout.owner_of) == (anew.present, anew.owner_of)
            assert layout.owned_json == anew.owned_json

    @invariant()
    def nothing_is_planned_beyond_the_notice(self) -> None:
        for id, auction in auctions(self.cell).items():
            first_slot = auction.auctioneer.market.first_slot
            for plan in held_cells(auction).values():
                for slot, node in plan.items():
                    loan = self.cell.nodes.loans.get(node) if slot >= first_slot else None
                    if loan is not None and loan.borrower == id:
                        ends_s = auction.calendar.start_s(slot + 1)
                        assert ends_s <= self.time_s + loan.notice_s
                        assert loan.reclaim is None or ends_s <= loan.reclaim.due_s


TestLoanHistories = LoanHistories.TestCase
TestLoanHistories.settings = settings(
    max_examples=examples(50),
    stateful_step_count=60,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
