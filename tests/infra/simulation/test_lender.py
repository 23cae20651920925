"""Lenders that take part in a simulation: what is lent comes back in time."""

import math
from collections.abc import Iterator

import pytest

from infra.simulation.lender import lenders_of
from infra.simulation.simulator import SimulatedRun, Simulation
from infra.workloads.timed import TimedEvent
from schemas.base import Event, Outcome
from schemas.changes import ZoneConfigured
from schemas.codec import Decision
from schemas.decisions import EventIgnored, JobCompleted
from schemas.elastic.outcomes import JobResized
from schemas.inference import CapacityOffered, CapacityReclaimed
from schemas.loans import LoanChanged, ReclaimEnded
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell
from streams.replay.replay import DecisionRecord, verify
from tests.infra.simulation.elastic.lending import at, lending_cell, load
from tests.support.elastic import INTERVAL_S, submit

HOUR_S = 3_600.0
SERVERS = 10
CELL = lending_cell(2, SERVERS, headroom=0.02, scenario="heterogeneous")
WORK = 250_000


def loads(until_s: float = 5 * HOUR_S) -> Iterator[TimedEvent[Event]]:
    """Every five minutes: high, low for three hours from the second on, and high again."""
    for step in range(int(until_s / 300.0)):
        time_s = step * 300.0
        yield load(time_s, 0.2 if HOUR_S <= time_s < 4 * HOUR_S else 0.85)


def checked(cell: Cell, entry: LedgerEvent) -> list[Decision]:
    """Return the cell's decisions for an entry, after checking its invariants."""
    decisions = cell.handle(entry)
    assert list(cell.broken_invariants()) == []
    return decisions


@pytest.fixture(scope="module")
def run() -> SimulatedRun:
    """An elastic job that keeps both of the zone's own servers busy, and takes whatever is lent."""
    job = submit("j", WORK, (8, 24), heterogeneous=True)
    inputs = [*loads(), at(30.0, job)]
    return Simulation(CELL, inputs, fold=checked, participants=lenders_of(CELL)).run()


def outcomes(run: SimulatedRun, kind: type[Outcome]) -> list[Outcome]:
    return [decision.outcome for decision in run.decisions if isinstance(decision.outcome, kind)]


def events(run: SimulatedRun, kind: type[Event]) -> list[Event]:
    return [entry.envelope.event for entry in run.ledger if isinstance(entry.envelope.event, kind)]


def test_falling_load_lends_and_rising_load_reclaims(run):
    changes = outcomes(run, LoanChanged)
    lent = {change.server for change in changes if change.status == "on_loan"}
    back = {change.server for change in changes if change.status == "returned"}
    assert len(lent) > SERVERS // 2
    assert lent == back
    assert {change.borrower for change in changes} == {"z"}
    since_s = [change.since_s for change in changes if change.status == "on_loan"]
    assert HOUR_S <= min(since_s) <= max(since_s) < 4 * HOUR_S
    ended = outcomes(run, ReclaimEnded)
    assert ended
    assert {end.status for end in ended} == {"in_time"}


def test_requests_of_lender_are_all_carried_out(run):
    assert events(run, CapacityOffered)
    assert events(run, CapacityReclaimed)
    assert outcomes(run, EventIgnored) == []


def test_elastic_job_uses_lent_servers_without_preemption(run):
    resized = outcomes(run, JobResized)
    on_lent = [any(member.node.startswith("t") for member in each.servers) for each in resized]
    assert resized[0].workers == 8
    assert any(on_lent)
    assert not on_lent[-1]
    assert {each.reason for each in resized} <= {
        "started",
        "scaled_out",
        "scaled_in",
        "moved",
        "servers_reclaimed",
    }


def test_nothing_is_lost(run):
    (completed,) = outcomes(run, JobCompleted)
    assert completed.samples_done == WORK
    records = [DecisionRecord(decision.canonical, decision.id) for decision in run.decisions]
    assert verify(run.ledger, records).ok


def test_a_load_that_stays_leads_to_no_reclaim():
    inputs = [load(step * 300.0, 0.5) for step in range(24)]
    run = Simulation(CELL, inputs, participants=lenders_of(CELL)).run()
    assert outcomes(run, LoanChanged)
    assert events(run, CapacityReclaimed) == []


def test_zones_that_do_not_lend_have_no_lender():
    assert len(lenders_of(CELL)) == 1
    without = CELL.model_copy(update={"zones": CELL.zones[:1]})
    assert lenders_of(without) == []


def test_a_lender_goes_on_under_new_settings():
    zone = CELL.zones[1]
    assert zone.lending is not None
    wary = zone.model_copy(update={"lending": zone.lending.model_copy(update={"headroom": 0.5})})
    changed = at(30.0, ZoneConfigured(cell=CELL.cell, zone=wary))
    inputs = [changed, *(load(step * 300.0, 0.2) for step in range(24))]
    run = Simulation(CELL, inputs, participants=lenders_of(CELL)).run()
    lent = {change.server for change in outcomes(run, LoanChanged)}
    assert len(lent) == SERVERS - math.ceil(0.5 * SERVERS) - 2, "headroom, and what the load needs"


def test_lender_repeats_refused_offer():
    zone = CELL.zones[1]
    not_lending = zone.model_copy(update={"lending": None})
    inputs = [
        at(30.0, ZoneConfigured(cell=CELL.cell, zone=not_lending)),
        at(HOUR_S, ZoneConfigured(cell=CELL.cell, zone=zone)),
        *(load(step * 300.0, 0.2) for step in range(24)),
    ]
    run = Simulation(CELL, inputs, participants=lenders_of(CELL)).run()
    assert {ignored.reason for ignored in outcomes(run, EventIgnored)} == {"zone_does_not_lend"}
    lent = [change for change in outcomes(run, LoanChanged) if change.status == "on_loan"]
    assert len(lent) == SERVERS - 3, "headroom, and what the load needs"
    assert lent[0].since_s == HOUR_S - INTERVAL_S, "by the clock, which ticks after the load"
