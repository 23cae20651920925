"""Loads and the cell's answers in, offers and reclaims out."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.lender.forecast import LastValue
from infra.lender.history import LoadHistory
from infra.lender.lending import Lender, LendingParameters
from schemas.decisions import EventIgnored, NodeMoved
from schemas.inference import (
    MAX_SERVERS,
    CapacityOffered,
    CapacityReclaimed,
    InferenceEvent,
    InferenceLoadReported,
)
from schemas.loans import LoanChanged, OfferAnswered, ReclaimPlanned, RefusedServers
from tests.infra.lender.loads import CELL, INTERVAL_S, START_S, ZONE, lending_zone
from tests.support import cells
from tests.support.examples import examples

STEADY = 4
"""Intervals for which what is offered must not have been needed."""


def parameters(**changes: float) -> LendingParameters:
    """Return parameters without a margin unless one is given: the load alone then determines the servers
    needed."""
    return LendingParameters(**{"steady_s": STEADY * INTERVAL_S, "margin_quantile": 0.0, **changes})


class Rising:
    """Forecasts that the load rises by so much in each interval."""

    def __init__(self, by: float) -> None:
        self.by = by

    def forecast(self, history: LoadHistory, steps: int) -> list[float]:
        return [
            min((history.mean(history.last) or 0.0) + self.by * step, 1.0) for step in range(1, steps + 1)
        ]


class House:
    """A lender and a cell that lends all that is offered, and whose servers return when reclaimed."""

    def __init__(self, servers=10, forecaster=None, headroom=0.1, notice_s=300.0, **changes):
        self.zone = lending_zone(servers, headroom, notice_s)
        self.lender = Lender(CELL, self.zone, forecaster or LastValue(), parameters(**changes))
        self.time_s = START_S
        self.lent: list[str] = []
        self.draining: list[str] = []

    def report(self, load, serving=(), after_s=INTERVAL_S) -> list[InferenceEvent]:
        """Report a load, `after_s` after the one before, and return the lender's events."""
        self.time_s += after_s
        return self.lender.on_load(
            InferenceLoadReported(cell=CELL, zone=ZONE, time_s=self.time_s, load=load, serving=serving)
        )

    def answer(self, events) -> None:
        for event in events:
            match event:
                case CapacityOffered(servers=servers, offer_id=name):
                    outcome = OfferAnswered(owner=ZONE, offer_id=name, lent=servers, refused=())
                    self.lender.on_decision(outcome, name, self.time_s)
                    for server in servers:
                        self.loan(server, "on_loan")
                    self.lent += servers
                case CapacityReclaimed(servers=count, reclaim_id=name, due_s=due_s):
                    assert count <= len(self.lent)
                    taken, self.lent = self.lent[:count], self.lent[count:]
                    plan = ReclaimPlanned(owner=ZONE, reclaim_id=name, due_s=due_s, servers=tuple(taken))
                    self.lender.on_decision(plan, name, self.time_s)
                    for server in taken:
                        self.loan(server, "draining")
                    self.draining += taken

    def loan(self, server, status) -> None:
        change = LoanChanged(
            server=server, owner=ZONE, borrower="training", status=status, since_s=self.time_s
        )
        self.lender.on_decision(change, "e1", self.time_s)

    def bring_back(self) -> None:
        for server in self.draining:
            self.loan(server, "returned")
        self.draining.clear()

    def live(self, *loads) -> list[InferenceEvent]:
        """Report loads, answer the lender's events each time, and return all of them."""
        said = []
        for load in loads:
            events = self.report(load)
            self.answer(events)
            said += events
        return said


def lending(servers=10, load=0.3, **changes) -> House:
    """A house that has lent what it can at a steady load."""
    house = House(servers, **changes)
    house.live(*[load] * (STEADY + 1))
    return house


def test_steady_load_lends_all_but_headroom():
    house = House()
    (offer,) = house.live(*[0.3] * 5)
    assert offer.servers == ("s009", "s008", "s007", "s006", "s005", "s004")
    assert offer.offer_id == f"offer-{round(house.time_s * 1_000)}"


def test_nothing_is_offered_before_enough_reports():
    assert House().live(*[0.3] * STEADY) == []


@pytest.mark.parametrize("ahead_s", [0.001, INTERVAL_S - 1.0, 86_400.0])
def test_fast_sender_clock_hides_no_other_report(ahead_s: float):
    house = lending(load=0.3)
    assert len(house.lent) == 6
    ahead = InferenceLoadReported(cell=CELL, zone=ZONE, time_s=house.time_s + 60.0 + ahead_s, load=0.3)
    assert house.lender.on_load(ahead, house.time_s + 60.0) == []
    assert house.lender.history.latest_s == house.time_s + 60.0
    # Not even where both are received at once.
    (reclaim,) = house.report(0.6, after_s=60.0)
    assert (reclaim.servers, reclaim.due_s) == (3, house.time_s + 300.0)


def test_loads_before_start_count_as_received():
    lender = House().lender
    ahead = InferenceLoadReported(cell=CELL, zone=ZONE, time_s=START_S + 86_400.0, load=0.1)
    assert lender.record_load(ahead, START_S)
    own = InferenceLoadReported(cell=CELL, zone=ZONE, time_s=START_S + INTERVAL_S, load=0.9)
    assert lender.record_load(own, START_S + INTERVAL_S + 1.0)
    assert lender.history.latest_s == own.time_s
    assert lender.history.mean(lender.history.last) == 0.9


def test_recently_needed_servers_are_not_offered():
    house = House()
    offers = house.live(0.3, 0.8, *[0.3] * STEADY)
    assert offers == [offers[0]]
    assert len(offers[0].servers) == 1
    assert len(house.live(0.3)[0].servers) == 5


def test_servers_needed_soon_are_not_offered():
    house = House(forecaster=Rising(0.05))
    (offer,) = house.live(*[0.1] * 5)
    seen = 2 + STEADY
    assert len(offer.servers) == 10 - math.ceil(10 * (0.1 + 0.05 * seen)) - 1


def test_serving_servers_are_not_offered():
    house = House()
    for _ in range(STEADY):
        house.report(0.3)
    (offer,) = house.report(0.3, serving=("s009", "s007", "s001"))
    assert offer.servers == ("s008", "s006", "s005", "s004", "s003", "s002")


def test_rising_load_reclaims_deficit_after_notice():
    house = lending(notice_s=450.0)
    (reclaim,) = house.report(0.5)
    assert (reclaim.servers, reclaim.due_s) == (2, house.time_s + 450.0)
    assert reclaim.reclaim_id == f"reclaim-{round(house.time_s * 1_000)}"


def test_burst_within_interval_reclaims_at_once():
    house = lending()
    (reclaim,) = house.report(0.5, after_s=20.0)
    assert (reclaim.servers, reclaim.due_s) == (2, house.time_s + 300.0)


def test_large_reclaim_is_split_into_events():
    house = lending(servers=2_500, load=0.0)
    house.live(0.0, 0.0)
    reclaims = house.report(1.0)
    assert [reclaim.servers for reclaim in reclaims] == [MAX_SERVERS, MAX_SERVERS, 2_250 - 2 * MAX_SERVERS]
    assert len({reclaim.reclaim_id for reclaim in reclaims}) == 3
    house.answer(reclaims)
    assert house.report(1.0) == []


def test_reclaims_look_ahead_by_notice_and_interval():
    house = lending(forecaster=LastValue(), notice_s=900.0)
    house.lender.use_forecaster(Rising(0.1))
    (reclaim,) = house.report(0.3)
    assert reclaim.servers == 4
    assert reclaim.due_s == house.time_s + 900.0


def test_returning_servers_are_not_reclaimed_twice():
    house = lending()
    assert len(house.live(0.5)) == 1
    assert house.live(0.5, 0.5) == []
    assert [event.servers for event in house.live(0.6)] == [1]


def test_a_reclaim_that_is_not_answered_yet_counts():
    house = lending()
    (reclaim,) = house.report(0.5)
    assert reclaim.servers == 2
    assert house.report(0.5, after_s=10.0) == []


def test_offer_with_unread_loans_is_not_repeated():
    house = House()
    house.live(*[0.3] * STEADY)
    (offer,) = house.report(0.3)
    answer = OfferAnswered(owner=ZONE, offer_id=offer.offer_id, lent=offer.servers, refused=())
    house.lender.on_decision(answer, offer.offer_id, house.time_s)
    assert house.report(0.3) == []
    assert house.lender.lent == set(offer.servers)


def test_reclaim_with_unread_loans_is_not_repeated():
    house = lending()
    (reclaim,) = house.report(0.5)
    plan = ReclaimPlanned(
        owner=ZONE, reclaim_id=reclaim.reclaim_id, due_s=reclaim.due_s, servers=tuple(house.lent[:2])
    )
    house.lender.on_decision(plan, plan.reclaim_id, house.time_s)
    assert house.report(0.5) == []


def test_new_process_offers_no_lent_server():
    house = lending()
    loans = [
        LoanChanged(server=server, owner=ZONE, borrower="training", status="on_loan", since_s=START_S)
        for server in house.lent
    ]
    successor = Lender(CELL, house.zone, LastValue(), parameters())
    successor.restore_loans(elsewhere=house.lent, loans=loans)
    assert successor.lent == set(house.lent)
    said = []
    for index in range(STEADY + 2):
        report = InferenceLoadReported(
            cell=CELL, zone=ZONE, time_s=START_S + (index + 1) * INTERVAL_S, load=0.3
        )
        said += successor.on_load(report)
    assert said == []


def test_unanswered_reclaim_is_repeated():
    house = lending(answer_s=600.0)
    assert house.report(0.5)
    assert house.report(0.5) == []
    (again,) = house.report(0.5)
    assert again.servers == 2


def test_ignored_reclaim_is_repeated_with_next_report():
    house = lending()
    (refused,) = house.report(0.5)
    ignored = EventIgnored(reason="more_than_on_loan")
    house.lender.on_decision(ignored, refused.reclaim_id, house.time_s)
    (again,) = house.report(0.5, after_s=10.0)
    assert again.due_s == refused.due_s + 10.0


def test_requests_of_others_count_until_answered():
    """Reclaims under ids of their own events, one that is ignored because its reclaim's id was used before:
    none of them keeps the lender from its own reclaim."""
    house = lending()
    foreign = CapacityReclaimed(cell=CELL, zone=ZONE, reclaim_id="theirs", servers=6, due_s=house.time_s)
    house.lender.on_reclaim(foreign, "event-1", house.time_s)
    house.lender.on_reclaim(foreign, "event-2", house.time_s)
    assert house.report(0.5, after_s=10.0) == []
    for event_id in ("event-1", "event-2"):
        ignored = EventIgnored(reason="more_than_on_loan")
        house.lender.on_decision(ignored, event_id, house.time_s)
    (reclaim,) = house.report(0.5, after_s=10.0)
    assert reclaim.servers == 2


def test_loan_being_set_up_is_not_reclaimed():
    house = House()
    house.live(*[0.3] * STEADY)
    (offer,) = house.report(0.3)
    assert house.report(0.5, after_s=10.0) == []
    house.answer([offer])
    (reclaim,) = house.report(0.5, after_s=10.0)
    assert reclaim.servers == 2


def test_refused_servers_are_not_offered_for_a_while():
    house = House(retry_s=2 * INTERVAL_S)
    house.live(*[0.3] * STEADY)
    (offer,) = house.report(0.3)
    refused = RefusedServers(reason="down", servers=("s009", "s008"))
    answer = OfferAnswered(owner=ZONE, offer_id=offer.offer_id, lent=offer.servers[2:], refused=(refused,))
    house.lender.on_decision(answer, offer.offer_id, house.time_s)
    for server in answer.lent:
        house.loan(server, "on_loan")
    (others,) = house.report(0.3)
    assert others.servers == ("s003", "s002")
    house.answer([others])
    assert house.live(0.2, 0.2, 0.2, *[0.2] * STEADY)[0].servers == ("s009",)


def test_returned_servers_are_offered_after_long_low_load():
    house = lending()
    house.live(0.6)
    house.bring_back()
    said = house.live(*[0.3] * (STEADY + 1))
    assert [type(event) for event in said] == [CapacityOffered]
    assert len(said[0].servers) == 3


def test_repeated_and_earlier_reports_change_nothing():
    house = lending()
    house.answer(house.report(0.6))
    house.report(0.4, after_s=INTERVAL_S / 2)
    mean = house.lender.history.mean(house.lender.history.last)
    assert house.report(0.4, after_s=0.0) == []
    assert house.report(0.9, after_s=-100.0) == []
    assert house.lender.history.mean(house.lender.history.last) == mean


def test_margin_follows_loads_above_plans():
    bursting, steady = (House(servers=100, margin_quantile=0.99) for _ in range(2))
    bursting.live(*[0.3, 0.4] * 20)
    steady.live(*[0.3] * 40)
    assert bursting.lender.margin_load == pytest.approx(0.1)
    assert steady.lender.margin_load == 0.0


def test_forecast_replaces_missing_report_without_offers():
    house = lending(forecaster=LastValue(), unknown_s=3_600.0)
    house.lender.pass_time(house.time_s)
    house.lender.use_forecaster(Rising(0.09))
    assert house.live(0.1) == []
    assert house.lender.pass_time(house.time_s + 1.5 * INTERVAL_S) == []
    (reclaim,) = house.lender.pass_time(house.time_s + 2 * INTERVAL_S)
    assert reclaim.servers == math.ceil(10 * (0.1 + 4 * 0.09)) + 1 - 4
    assert house.lender.pass_time(house.time_s + 2.5 * INTERVAL_S) == []


def test_long_unknown_load_reclaims_all():
    house = lending(unknown_s=900.0)
    assert house.lender.pass_time(house.time_s + 899.0) == []
    (reclaim,) = house.lender.pass_time(house.time_s + 900.0)
    assert (reclaim.servers, reclaim.due_s) == (6, house.time_s + 1_200.0)
    assert house.lender.pass_time(house.time_s + 901.0) == []


def test_lender_without_any_report_reclaims_all():
    house = House(unknown_s=900.0)
    house.loan("s001", "on_loan")
    assert house.lender.pass_time(START_S) == []
    assert house.lender.pass_time(START_S + 900.0)[0].servers == 1


def test_nothing_is_offered_directly_after_a_gap():
    house = House()
    house.live(*[0.3] * 3)
    assert house.report(0.3, after_s=10 * INTERVAL_S) == []
    assert house.live(*[0.3] * (STEADY - 1)) == []
    assert len(house.live(0.3)) == 1


def test_new_process_resumes_former_state():
    house = lending()
    (reclaim,) = house.report(0.5)
    successor = Lender(CELL, house.zone, LastValue(), parameters(answer_s=3_600.0))
    for server in house.lent:
        change = LoanChanged(
            server=server, owner=ZONE, borrower="training", status="on_loan", since_s=START_S
        )
        successor.on_decision(change, "e1", house.time_s)
    for index in range(6):
        load = 0.5 if index == 5 else 0.3
        time_s = START_S + (index + 1) * INTERVAL_S
        successor.record_load(InferenceLoadReported(cell=CELL, zone=ZONE, time_s=time_s, load=load))
    unanswered = successor.pass_time(house.time_s)
    assert [event.servers for event in unanswered] == [2]
    ignored = EventIgnored(reason="more_than_on_loan")
    successor.on_decision(ignored, unanswered[0].reclaim_id, house.time_s)
    successor.on_reclaim(reclaim, "of-the-one-before", house.time_s)
    assert successor.pass_time(house.time_s + 2 * INTERVAL_S) == []


def test_answers_that_are_read_before_their_questions_count():
    house = lending()
    (reclaim,) = house.report(0.5)
    house.answer([reclaim])
    house.lender.on_reclaim(reclaim, reclaim.reclaim_id, house.time_s)
    assert not house.lender.awaits(reclaim.reclaim_id)


def test_server_lent_by_operator_is_not_reclaimed():
    house = House()
    for name in ("s000", "s001"):
        moved = NodeMoved(node=name, from_zone=ZONE, to_zone="training", reason="lent")
        house.lender.on_decision(moved, "e1", START_S)
    (offer,) = house.live(*[0.3] * 5)
    assert len(offer.servers) == 4
    assert [event.servers for event in house.live(0.9)] == [4]


def test_servers_that_join_and_leave_the_zone_count():
    house = House()
    joins = NodeMoved(node="s100", from_zone=None, to_zone=ZONE, reason="registered")
    leaves = NodeMoved(node="s000", from_zone=ZONE, to_zone=None, reason="retired")
    for moved in (joins, leaves, joins.model_copy(update={"to_zone": "training", "node": "s200"})):
        house.lender.on_decision(moved, "e1", START_S)
    (offer,) = house.live(*[0.3] * 5)
    assert offer.servers[0] == "s100"
    assert len(offer.servers) == 6


def test_other_zones_are_passed_over():
    house = lending()
    change = LoanChanged(server="x1", owner="other", borrower="training", status="on_loan", since_s=START_S)
    house.lender.on_decision(change, "e1", START_S)
    assert len(house.lender.lent) == 6


def test_zone_without_lending_has_no_lender():
    with pytest.raises(ValueError, match="zone z does not lend"):
        Lender(CELL, cells.zone(), LastValue())


loads_of_any_kind = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=60)


@settings(max_examples=examples(150), deadline=None)
@given(
    loads=loads_of_any_kind,
    servers=st.integers(1, 40),
    headroom=st.sampled_from([0.0, 0.02, 0.1, 0.5]),
    notice_s=st.sampled_from([30.0, 300.0, 1_000.0]),
    steps_s=st.sampled_from([60.0, 300.0, 700.0]),
    return_every=st.integers(1, 4),
)
def test_offers_keep_headroom_and_reclaims_fit_loans(
    loads, servers, headroom, notice_s, steps_s, return_every
):
    house = House(servers, headroom=headroom, notice_s=notice_s)
    for number, load in enumerate(loads):
        lent_before = len(house.lent)
        events = house.report(load, after_s=steps_s)
        assert len(events) <= 1
        for event in events:
            match event:
                case CapacityOffered(servers=offered):
                    away = lent_before + len(house.draining) + len(offered)
                    assert servers - away >= math.ceil(load * servers) + max(math.ceil(headroom * servers), 1)
                    assert not set(offered) & {*house.lent, *house.draining}
                case CapacityReclaimed(servers=count, due_s=due_s):
                    assert 1 <= count <= lent_before
                    assert due_s == house.time_s + notice_s
        house.answer(events)
        if number % return_every == 0:
            house.bring_back()


@settings(max_examples=examples(50), deadline=None)
@given(
    before=loads_of_any_kind,
    load=st.floats(0.0, 1.0),
    servers=st.integers(1, 40),
    notice_s=st.floats(1.0, 2_000.0),
)
def test_constant_load_reclaims_nothing(before, load, servers, notice_s):
    house = House(servers, notice_s=notice_s)
    house.live(*before)
    house.live(*[load] * 12)
    house.bring_back()
    said = house.live(*[load] * 30)
    assert all(isinstance(event, CapacityOffered) for event in said)


@pytest.mark.parametrize("quantile", [0.0, 0.99])
def test_fast_swings_do_not_alternate_loans_and_reclaims(quantile):
    house = House(servers=100, margin_quantile=quantile)
    house.live(*[0.5, 0.6, 0.4] * 40)
    house.bring_back()
    house.live(*[0.5, 0.6, 0.4] * 5)
    house.bring_back()
    assert house.live(*[0.5, 0.6, 0.4] * 40) == []


def test_the_same_inputs_lead_to_the_same_events():
    loads = [0.3 + 0.2 * math.sin(index / 7) for index in range(80)]
    first, second = (House(servers=50).live(*loads) for _ in range(2))
    assert first == second
    assert len(first) > 2
