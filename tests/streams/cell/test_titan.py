"""The bids of a slot decided together: when a solver is asked, its problem, and the effect of its answer."""

import pytest

from schemas.auction.batches import SolvedPlan
from schemas.auction.settings import TitanPolicy
from schemas.decisions import EventIgnored, JobAdmitted, JobQuoted, JobRejected, JobWithdrawn
from schemas.solves import SolveRequested
from streams.cell.state_machine import Cell
from streams.policies.auction import batch_admission
from tests.support.cells import (
    EPOCH_S,
    UNIT,
    CheckedBench,
    ask,
    bid,
    nodes_by_slot,
    offline,
    solved,
    tick,
    vendor,
    withdraw,
    zone,
)
from tests.support.solves import titan_answer

LATE = 0.6
"""Time in the last half of a slot."""
WHOLE = {"fast": 10.0}


@pytest.fixture
def bench() -> CheckedBench:
    bench = CheckedBench.configured(zones=(zone(policy=TitanPolicy(kind="titan")),))
    bench.send(tick(0))
    return bench


def requests(outcomes) -> list[SolveRequested]:
    return [outcome for outcome in outcomes if isinstance(outcome, SolveRequested)]


def asked(bench: CheckedBench, *bids) -> SolveRequested:
    """The request for bids that came in slot 0."""
    (requested,) = bench.send(*bids, tick(LATE))
    return requested


def plan(job_id: str, *cells: tuple[int, str]) -> SolvedPlan:
    return SolvedPlan(job_id=job_id, node_slots=cells)


def test_bids_wait_for_first_tick_of_second_half(bench):
    assert bench.send(bid("j1"), tick(0.4), bid("j2")) == []
    (requested,) = bench.send(tick(0.5))
    assert [offered.job_id for offered in requested.problem.bids] == ["j1", "j2"]
    assert requested.problem.first_slot == 1
    assert bench.send(tick(0.7)) == []


def test_bids_after_it_wait_for_the_next_slots(bench):
    asked(bench, bid("j1"))
    assert bench.send(bid("j2"), tick(0.8)) == []
    assert requests(bench.send(tick(1), tick(1.2))) == []
    (requested,) = requests(bench.send(tick(1.6)))
    assert [offered.job_id for offered in requested.problem.bids] == ["j2"]


def test_bids_beyond_request_wait_for_next_slots(bench, monkeypatch):
    monkeypatch.setattr(batch_admission, "MOST_BIDS", 2)
    first = asked(bench, bid("j1"), bid("j2"), bid("j3"))
    assert [offered.job_id for offered in first.problem.bids] == ["j1", "j2"]
    assert bench.send(tick(0.8)) == []
    (second,) = requests(bench.send(tick(1.6)))
    assert [offered.job_id for offered in second.problem.bids] == ["j3"]


def test_first_later_tick_asks_if_none_came(bench):
    assert bench.send(bid(work_samples=100)) == []
    (requested,) = requests(bench.send(tick(1)))
    assert (requested.problem.first_slot, requested.problem.bids[0].ready_slot) == (2, 2)


def test_a_slot_without_bids_asks_nothing(bench):
    assert requests(bench.send(tick(LATE), tick(1), tick(1.6))) == []


def test_request_holds_bid_vendor_and_free_room(bench):
    (admitted,) = bench.send(
        solved(asked(bench, bid("held", speed_samples_per_s=WHOLE)), plan("held", (1, "a1"), (2, "a1")))
    )
    assert isinstance(admitted, JobAdmitted)
    bench.send(vendor("slow", 1.5, 5.0), offline("a2"), tick(1))
    (requested,) = requests(bench.send(bid("j", needs_preprocessing=True, work_samples=150), tick(1.6)))
    (offered,) = requested.problem.bids
    assert (offered.vendor, offered.vendor_micros, offered.ready_slot) == ("slow", 1_500_000, 3)
    assert (offered.work_samples, offered.slot_samples, offered.last_slot) == (150, (50, 50), 5)
    assert offered.memory_quanta == 2 * 1024
    fast, slow = requested.problem.classes
    assert (fast.nodes, fast.capacity_samples, fast.capacity_quanta) == (("a1", "a2"), 100, 8 * 1024)
    assert fast.full_cost_micros == (float(UNIT),) * 4
    assert fast.free_samples == ((0, 0), (100, 0), (100, 0), (100, 0))
    assert fast.free_quanta[0] == (6 * 1024, 0)
    assert slow.free_samples == ((50,),) * 4


def test_best_schedule_excludes_bid_that_blocks_others(bench):
    all_of_it = {"work_samples": 200, "speed_samples_per_s": WHOLE, "deadline_s": EPOCH_S + 30}
    bids = [bid(f"j{number}", units, **all_of_it) for number, units in enumerate((5.0, 9.0, 7.0))]
    requested = asked(bench, *bids)
    outcomes = bench.send(titan_answer(requested))
    admitted = [outcome for outcome in outcomes if isinstance(outcome, JobAdmitted)]
    assert [outcome.job_id for outcome in admitted] == ["j1", "j2"]
    assert [outcome.payment_micros for outcome in admitted] == [2 * UNIT, 2 * UNIT]
    (rejected,) = [outcome for outcome in outcomes if isinstance(outcome, JobRejected)]
    assert (rejected.job_id, rejected.reason) == ("j0", "no_room_before_deadline")


def test_bid_outside_schedule_gets_the_reason(bench):
    (rejected,) = bench.send(solved(asked(bench, bid()), status="feasible"))
    assert rejected.reason == "not_in_schedule"
    assert rejected.evidence.offer.price.operational_micros == 2 * UNIT


def test_bid_without_solution_gets_the_reason(bench):
    (rejected,) = bench.send(solved(asked(bench, bid()), status="none"))
    assert rejected.reason == "solver_found_nothing"


def test_bid_at_cost_is_rejected_for_price(bench):
    (rejected,) = bench.send(titan_answer(asked(bench, bid(units=2.0))))
    assert rejected.reason == "price_not_below_bid"


def test_hopeless_bid_is_rejected_at_once(bench):
    (rejected,) = bench.send(bid(deadline_s=EPOCH_S + 30))
    assert (rejected.job_id, rejected.reason) == ("j", "deadline_too_soon")


A_PLAN = ((1, "a1"), (2, "a1"), (3, "a1"), (4, "a1"))
FAULTY = {
    "slots that do not ascend": ((2, "a1"), (1, "a1"), (3, "a1"), (4, "a1")),
    "a slot twice": ((1, "a1"), (1, "a2"), (3, "a1"), (4, "a1")),
    "the present slot": ((0, "a1"), *A_PLAN[1:]),
    "a slot after the deadline": (*A_PLAN[:3], (6, "a1")),
    "a slot beyond the horizon": (*A_PLAN[:3], (10**9, "a1")),
    "an unknown node": (*A_PLAN[:3], (4, "a9")),
    "too little work": A_PLAN[:3],
}


@pytest.mark.parametrize("cells", FAULTY.values(), ids=FAULTY)
def test_invalid_plan_is_not_applied(bench, cells):
    (rejected,) = bench.send(solved(asked(bench, bid()), plan("j", *cells)))
    assert isinstance(rejected, JobRejected)
    assert rejected.reason == "plan_not_feasible"
    assert not bench.described["jobs"]


def test_plan_on_unfit_class_is_not_applied(bench):
    requested = asked(bench, bid(speed_samples_per_s=WHOLE))
    (rejected,) = bench.send(solved(requested, plan("j", (1, "a1"), (2, "b1"), (3, "a1"))))
    assert rejected.reason == "plan_not_feasible"


def test_a_job_that_is_planned_twice_gets_neither(bench):
    (rejected,) = bench.send(solved(asked(bench, bid()), plan("j", *A_PLAN), plan("j", *A_PLAN)))
    assert rejected.reason == "plan_not_feasible"


def test_conflicting_plans_apply_as_room_allows(bench):
    requested = asked(bench, *[bid(f"j{number}") for number in range(3)])
    outcomes = bench.send(solved(requested, *[plan(f"j{number}", *A_PLAN) for number in range(3)]))
    assert [type(outcome) for outcome in outcomes] == [JobAdmitted, JobAdmitted, JobRejected]
    assert outcomes[-1].reason == "plan_not_feasible"


def test_plan_after_its_first_slot_is_late(bench):
    requested = asked(bench, bid("j1"), bid("j2"))
    bench.send(tick(1))
    late = plan("j2", *[(slot, "a1") for slot in (2, 3, 4, 5)])
    admitted, rejected = bench.send(solved(requested, plan("j1", *A_PLAN), late))
    assert (admitted.job_id, rejected.job_id) == ("j2", "j1")
    assert (rejected.facts["ready_slot"], rejected.facts["last_slot"]) == (2, 5)


def test_plan_on_lost_node_is_not_applied(bench):
    requested = asked(bench, bid())
    bench.send(offline("a1"))
    (rejected,) = bench.send(solved(requested, plan("j", *A_PLAN)))
    assert rejected.reason == "plan_not_feasible"
    assert rejected.facts == {"case": "room_gone"}


def test_answer_counts_once_for_its_request(bench):
    requested = asked(bench, bid())
    unknown = requested.model_copy(update={"request_id": "batch-9"})
    elsewhere = requested.model_copy(update={"zone": "y"})
    for answer in (solved(unknown), solved(elsewhere)):
        (ignored,) = bench.send(answer)
        assert (type(ignored), ignored.reason) == (EventIgnored, "unknown_solve")
    bench.send(solved(requested, plan("j", *A_PLAN)))
    (ignored,) = bench.send(solved(requested, plan("j", *A_PLAN)))
    assert ignored.reason == "unknown_solve"


def test_an_auction_zone_waits_for_no_solver():
    bench = CheckedBench.configured()
    (ignored,) = bench.send(solved(SolveRequested.model_construct(zone="z", request_id="batch-1")))
    assert ignored.reason == "unknown_solve"


def test_unanswered_bid_is_rejected_near_deadline(bench):
    asked(bench, bid())
    assert not [o for o in bench.send(tick(1)) if isinstance(o, JobRejected)]
    (rejected,) = [o for o in bench.send(tick(2)) if isinstance(o, JobRejected)]
    assert (rejected.job_id, rejected.reason) == ("j", "deadline_too_soon")


@pytest.mark.parametrize("when", ["before", "after"])
def test_waiting_bid_is_withdrawn_free_and_leaves_bound(bench, when):
    bench.send(bid())
    requested = bench.send(tick(LATE)) if when == "after" else []
    (others,) = bench.send(withdraw(user="eve"))
    assert others.reason == "not_the_owner"
    (withdrawn,) = bench.send(withdraw())
    assert isinstance(withdrawn, JobWithdrawn)
    assert (withdrawn.returned_micros, withdrawn.retained_micros) == (0, 0)
    assert withdrawn.evidence.certificate.dual_bound_micros == 0
    (ignored,) = bench.send(withdraw())
    assert ignored.reason == "unknown_job"
    for asked_before in requested:
        (ignored,) = bench.send(solved(asked_before, plan("j", *A_PLAN)))
        assert (type(ignored), ignored.reason) == (EventIgnored, "unknown_job")


def test_quote_states_offer_of_single_bid(bench):
    (quoted,) = bench.send(ask())
    assert isinstance(quoted, JobQuoted)
    assert quoted.reason == "plan_found"
    assert quoted.facts == {"case": "decided_together"}
    assert quoted.evidence.offer.lowest_winning_bid_micros == 2 * UNIT + 1


@pytest.mark.parametrize("restored_after", ["the bids", "the request"])
def test_restored_cell_decides_the_same(bench, restored_after):
    bids = [bid("j1"), bid("j2", needs_preprocessing=True)]
    bench.send(vendor("slow", 1.0, 5.0), vendor("fast", 2.0, 0.0), *bids)
    twin = Cell.restore(bench.cell.snapshot())
    (requested,) = bench.send(tick(LATE))
    if restored_after == "the bids":
        (decision,) = twin.handle(bench.ledger[-1])
        assert decision.canonical == bench.decisions[-1].canonical
    else:
        twin = Cell.restore(bench.cell.snapshot())
    outcomes = bench.send(titan_answer(requested))
    assert all(isinstance(outcome, JobAdmitted) for outcome in outcomes)
    assert nodes_by_slot(outcomes[0])
    again = twin.handle(bench.ledger[-1])
    assert [decision.canonical for decision in again] == [d.canonical for d in bench.decisions[-2:]]
