"""The lender with production's cell: its events are accepted, and reclaimed servers return in time."""

import pytest

from infra.lender.forecast import SeasonalNaive
from infra.lender.lending import Lender, LendingParameters
from infra.lender.service import event_id_of
from infra.workloads.elastic.loads import INTERVAL_S, generate_load
from schemas.base import Event, Outcome
from schemas.cells import Borrower, Lending, Node
from schemas.clock import ClockTicked
from schemas.codec import Decision, Envelope
from schemas.decisions import EventIgnored
from schemas.inference import InferenceLoadReported
from schemas.loans import LoanChanged, OfferAnswered, ReclaimEnded
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell
from tests.support.cells import configuration, zone
from tests.support.invariants import handle_checked

SERVERS = 30
DAYS = 2


@pytest.mark.slow
def test_daily_swing_has_no_refusal_or_delay():
    nodes = tuple(Node(id=f"s{number:02}", gpu_type="fast", tariff="t") for number in range(SERVERS))
    lending = Lending(notice_s=240.0, borrowers=(Borrower(zone="z"),))
    serving = zone(id="serving", nodes=nodes, lending=lending)
    start_s = 1_700_000_000.0
    cell = Cell("c")
    offset = 0

    def send(event: Event, event_id: str | None = None) -> list[Decision]:
        nonlocal offset
        offset += 1
        envelope = Envelope(event_id or f"e{offset}", "tests", "", event)
        return handle_checked(cell, LedgerEvent(offset, envelope))

    send(configuration(epoch_s=start_s, slot_s=600.0, zones=(zone(), serving)))
    lender = Lender("c", serving, SeasonalNaive(), LendingParameters())
    decided: list[Outcome] = []
    for sample in generate_load(seed=4, days=DAYS):
        time_s = start_s + sample.offset_s
        outcomes_of_tick = send(ClockTicked(cell="c", time_s=time_s))
        report = InferenceLoadReported(cell="c", zone="serving", time_s=time_s, load=sample.load)
        outcomes_of_tick += send(report)
        for event in lender.on_load(report):
            outcomes_of_tick += send(event, event_id_of(event))
        # So that what is due between two reports is seen to be back, or not.
        outcomes_of_tick += send(ClockTicked(cell="c", time_s=time_s + INTERVAL_S - 1.0))
        for decision in outcomes_of_tick:
            lender.on_decision(decision.outcome, decision.cause, time_s)
            decided.append(decision.outcome)

    assert not [outcome for outcome in decided if isinstance(outcome, EventIgnored)]
    answers = [outcome for outcome in decided if isinstance(outcome, OfferAnswered)]
    ended = [outcome for outcome in decided if isinstance(outcome, ReclaimEnded)]
    assert len(answers) > 5
    assert not any(answer.refused for answer in answers)
    assert len(ended) > 5
    assert {outcome.status for outcome in ended} == {"in_time"}
    latest = {change.server: change.status for change in decided if isinstance(change, LoanChanged)}
    assert lender.lent == {server for server, status in latest.items() if status != "returned"}
