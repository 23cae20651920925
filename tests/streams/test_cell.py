"""The cell as a state machine: events in, decisions out."""

import pytest

from schemas.commands import RunCancelled, SlotAssigned
from schemas.decisions import (
    CellAccepted,
    EventIgnored,
    JobAdmitted,
    JobCompleted,
    JobQuoted,
    JobRefunded,
    JobRejected,
    JobReplanned,
    JobWithdrawn,
    NodeStatusChanged,
    ZonePriced,
)
from streams.cell import Cell
from tests.support.cells import (
    EPOCH_S,
    SLOT_S,
    UNIT,
    Bench,
    ask,
    bid,
    configuration,
    failed,
    finished,
    heartbeat,
    offline,
    online,
    progressed,
    started,
    tick,
    vendor,
    vendor_left,
    withdraw,
    zone,
)
from tests.support.invariants import check_zone


@pytest.fixture
def bench() -> Bench:
    return Bench.configured()


def nodes_by_slot(outcome):
    plan = outcome.plan if isinstance(outcome, JobReplanned) else outcome.offer.plan
    return dict(plan.cells)


# Bids


def test_a_bid_in_an_empty_cell_pays_only_its_operational_cost(bench):
    (admitted,) = bench.send(bid())
    assert isinstance(admitted, JobAdmitted)
    # Four slots of half a fast node, or of a whole slow one: both cost half a unit per slot.
    assert admitted.payment_micros == 2 * UNIT
    assert admitted.offer.price.operational_micros == 2 * UNIT
    assert len(admitted.offer.plan.cells) == 4
    assert admitted.certificate.welfare_micros == 48 * UNIT
    assert admitted.certificate.dual_bound_micros >= 48 * UNIT


def test_the_second_bid_pays_for_the_scarcity_that_the_first_one_made():
    bench = Bench.configured(zones=(zone(nodes=zone().nodes[:1], horizon_slots=4),))
    first, second = bench.send(bid("j1", deadline_s=EPOCH_S + 40), bid("j2", deadline_s=EPOCH_S + 40))
    assert isinstance(first, JobAdmitted)
    assert isinstance(second, JobRejected)
    assert second.reason == "price_not_below_bid"
    lowest = second.offer.lowest_winning_bid_micros
    (third,) = bench.send(bid("j3", units=lowest / UNIT, deadline_s=EPOCH_S + 40))
    assert isinstance(third, JobAdmitted)
    assert third.payment_micros <= lowest


def test_a_bid_at_the_price_loses_and_a_micro_more_wins(bench):
    (quoted,) = bench.send(ask())
    lowest = quoted.offer.lowest_winning_bid_micros
    below, at = bench.send(bid("j1", (lowest - 1) / UNIT), bid("j2", lowest / UNIT))
    assert isinstance(below, JobRejected)
    assert isinstance(at, JobAdmitted)


REJECTIONS = {
    "an unknown zone": (bid(zone="nowhere"), "unknown_zone"),
    "a deadline in the past": (bid(deadline_s=EPOCH_S - 1), "deadline_too_soon"),
    "a deadline before even an empty cell could": (bid(deadline_s=EPOCH_S + 30), "deadline_too_soon"),
    "more work than the horizon holds": (bid(work_samples=10**6), "deadline_too_soon"),
    "an unknown GPU type": (bid(speed_samples_per_s={"tpu": 1.0}), "unknown_gpu_type"),
    "neither speed nor a throughput table": (bid(speed_samples_per_s=None), "no_throughput_known"),
    "more memory than a node has": (bid(memory_gib=9.0), "larger_than_a_node"),
    "more speed than a node has": (bid(speed_samples_per_s={"fast": 11.0}), "larger_than_a_node"),
    "pre-processing without a vendor": (bid(needs_preprocessing=True), "no_vendor"),
    "a bid below the price": (bid(units=1.0), "price_not_below_bid"),
}


@pytest.mark.parametrize(("event", "reason"), REJECTIONS.values(), ids=REJECTIONS.keys())
def test_a_bid_is_rejected_for(bench, event, reason):
    (rejected,) = bench.send(event)
    assert isinstance(rejected, JobRejected)
    assert rejected.reason == reason
    assert rejected.detail


def test_a_rejection_for_lack_of_room_says_what_bound_and_which_deadline_would_have_done():
    bench = Bench.configured(zones=(zone(nodes=zone().nodes[2:]),))
    held, rejected = bench.send(
        bid("j1", deadline_s=EPOCH_S + 40), bid("j2", units=10**6, work_samples=100, deadline_s=EPOCH_S + 40)
    )
    assert isinstance(held, JobAdmitted)
    assert rejected.reason == "no_room_before_deadline"
    assert rejected.offer.room.binding == "compute"
    assert rejected.offer.room.cells_without_compute == 4
    assert rejected.offer.earliest_deadline_s == EPOCH_S + 60


def test_a_job_id_is_judged_once(bench):
    _, again = bench.send(bid(), bid(units=60.0))
    assert (again.reason, bench.zone.book.jobs["j"].bid_micros) == ("duplicate_job", 50 * UNIT)


def test_the_vendor_is_part_of_the_search(bench):
    bench.send(vendor("slow", 1.0, 20.0), vendor("fast", 5.0, 0.0))
    (leisurely,) = bench.send(bid("j1", needs_preprocessing=True))
    assert leisurely.offer.plan.vendor == "slow"
    assert min(nodes_by_slot(leisurely)) >= 2
    (urgent,) = bench.send(bid("j2", needs_preprocessing=True, deadline_s=EPOCH_S + 40))
    assert urgent.offer.plan.vendor == "fast"
    bench.send(vendor_left("fast"))
    (hopeless,) = bench.send(bid("j3", needs_preprocessing=True, deadline_s=EPOCH_S + 40))
    assert hopeless.reason == "deadline_too_soon"


def test_a_quote_is_what_the_bid_then_meets_and_changes_nothing(bench):
    bench.send(bid("j1"))
    before = bench.zone.state()
    (quoted,) = bench.send(ask())
    assert isinstance(quoted, JobQuoted)
    assert bench.zone.state() == before
    (admitted,) = bench.send(bid("j2"))
    assert admitted.offer == quoted.offer


def test_amounts_and_words_beyond_what_an_input_may_hold_are_decided_on_all_the_same(bench):
    many = {f"g{number:02d}{'x' * 120}": 1.0 for number in range(16)}
    (rejected,) = bench.send(bid("j1", speed_samples_per_s=many))
    assert rejected.reason == "unknown_gpu_type"
    bench.send(vendor("slow", 10**9, 0.0))
    (dear,) = bench.send(bid("j2", needs_preprocessing=True))
    assert dear.offer.lowest_winning_bid_micros > 10**15
    for number in range(8):
        bench.send(bid(f"rich{number}", 10**9, work_samples=1, deadline_s=EPOCH_S + 10))
    bench.send(bid("j3", work_samples=10), tick(10**8), bid("j4", deadline_s=EPOCH_S + 10.0**9 + 100))
    check_zone(bench.zone)


# Slots and runs


def test_each_slot_is_assigned_when_it_begins(bench):
    (admitted,) = bench.send(bid())
    assigned = {}
    for slot in range(6):
        *commands, priced = bench.send(tick(slot))
        assert isinstance(priced, ZonePriced)
        for outcome in commands:
            assert isinstance(outcome, SlotAssigned)
            (order,) = outcome.runs
            assert (order.job_id, order.quota_samples, outcome.slot_start_s) == (
                "j",
                50,
                EPOCH_S + slot * SLOT_S,
            )
            assigned[outcome.slot] = outcome.node
            done = order.resume_samples + 50
            report = finished if done == 200 else progressed
            bench.send(started(outcome.node, slot, order.resume_samples), report(outcome.node, slot, done))
        bench.send(*[heartbeat(node) for node in ("a1", "a2", "b1")])
    assert assigned == nodes_by_slot(admitted)


def test_a_finished_job_is_completed_and_frees_what_it_did_not_need(bench):
    (admitted,) = bench.send(bid(deadline_s=EPOCH_S + 40))
    bench.send(tick(0))
    node = nodes_by_slot(admitted)[0]
    (completed,) = bench.send(finished(node, 0))
    assert isinstance(completed, JobCompleted)
    # One slot was spent of the four that were planned.
    assert completed.certificate.welfare_micros == 50 * UNIT - UNIT // 2
    check_zone(bench.zone)
    assert bench.zone.auctioneer.market.free_samples.sum() == 6 * (100 + 100 + 50)


def test_a_run_that_falls_behind_is_planned_again_at_no_charge(bench):
    (admitted,) = bench.send(bid(deadline_s=EPOCH_S + 60))
    for slot in range(min(nodes_by_slot(admitted)) + 1):
        bench.send(tick(slot))
    node = nodes_by_slot(admitted)[slot]
    bench.send(started(node, slot, 0))
    (replanned,) = bench.send(progressed(node, slot, 20))
    assert isinstance(replanned, JobReplanned)
    assert (replanned.reason, replanned.remaining_samples) == ("behind_plan", 180)
    assert bench.zone.book.jobs["j"].payment_micros == admitted.payment_micros
    check_zone(bench.zone)


def test_a_job_that_can_no_longer_meet_its_deadline_is_refunded_in_full(bench):
    (admitted,) = bench.send(bid(deadline_s=EPOCH_S + 40))
    bench.send(tick(0))
    node = nodes_by_slot(admitted)[0]
    refunded, *commands = bench.send(started(node, 0, 0), progressed(node, 0, 20))
    assert isinstance(refunded, JobRefunded)
    assert (refunded.reason, refunded.refund_micros) == ("behind_plan", admitted.payment_micros)
    assert commands == [RunCancelled(zone="z", node=node, job_id="j")]
    assert refunded.certificate.welfare_micros == -UNIT // 2
    check_zone(bench.zone)


def test_a_slot_whose_report_never_comes_is_counted_as_lost_one_slot_later(bench):
    bench.send(bid(deadline_s=EPOCH_S + 60))
    outcomes = bench.send(tick(0), tick(1), tick(2))
    replanned = [outcome for outcome in outcomes if isinstance(outcome, JobReplanned)]
    planned_first = min(slot for slot in bench.zone.book.jobs["j"].rows)
    assert [r.reason for r in replanned] == (["behind_plan"] if planned_first == 0 else [])


def test_a_silent_node_is_down_and_its_jobs_move(bench):
    bench.send(tick(0))
    (admitted,) = bench.send(bid(speed_samples_per_s={"fast": 5.0}))
    node = nodes_by_slot(admitted)[1]
    bench.send(online(node), tick(1))
    down, replanned = bench.send(tick(1.6))
    assert down == NodeStatusChanged(zone="z", node=node, status="down", reason="silent")
    assert isinstance(replanned, JobReplanned)
    assert replanned.reason == "node_lost"
    assert node not in nodes_by_slot(replanned).values()
    (up,) = bench.send(heartbeat(node))
    assert up == NodeStatusChanged(zone="z", node=node, status="up", reason="online")


def test_an_orderly_leave_moves_the_jobs_at_once(bench):
    (admitted,) = bench.send(bid(speed_samples_per_s={"fast": 5.0}))
    node = next(iter(nodes_by_slot(admitted).values()))
    down, replanned = bench.send(offline(node))
    assert (down.reason, replanned.reason) == ("offline", "node_lost")
    assert bench.send(offline(node)) == []


def test_a_node_with_another_base_model_is_not_used(bench):
    ignored, down = bench.send(online("a1", base_model="other"))
    assert (ignored.reason, down.status) == ("wrong_base_model", "down")
    assert bench.send(heartbeat("a1")) == []
    (up,) = bench.send(online("a1"))
    assert up.status == "up"


@pytest.mark.parametrize("permanent", [False, True])
def test_a_failed_run_is_planned_again_unless_it_can_run_nowhere(bench, permanent):
    (admitted,) = bench.send(bid())
    slot = min(nodes_by_slot(admitted))
    for ahead in range(slot + 1):
        bench.send(tick(ahead))
    node = nodes_by_slot(admitted)[slot]
    (outcome,) = bench.send(started(node, slot, 0), failed(node, slot, 10, permanent))
    assert isinstance(outcome, JobRefunded if permanent else JobReplanned)
    assert outcome.reason == "run_failed"
    assert outcome.remaining_samples == 190


def test_a_late_report_of_an_earlier_slot_does_not_turn_a_job_back(bench):
    (admitted,) = bench.send(bid(deadline_s=EPOCH_S + 40))
    nodes = nodes_by_slot(admitted)
    bench.send(tick(0), started(nodes[0], 0, 0), tick(1), started(nodes[1], 1, 50))
    (ignored,) = bench.send(progressed(nodes[0], 0, 20))
    assert (ignored.reason, bench.zone.book.jobs["j"].samples_done) == ("stale_report", 50)


def test_a_job_whose_adapter_is_not_delivered_does_not_wait_for_ever(bench):
    (admitted,) = bench.send(bid(deadline_s=EPOCH_S + 40))
    for slot, node in nodes_by_slot(admitted).items():
        bench.send(tick(slot), started(node, slot, 50 * slot))
        if slot < 3:
            bench.send(progressed(node, slot, 50 * slot + 50))
    refunded, *_ = bench.send(failed(node, slot, 200, permanent=False))
    assert isinstance(refunded, JobRefunded)
    assert (refunded.reason, refunded.remaining_samples) == ("deadline_passed", 1)


def test_a_lost_checkpoint_is_planned_again(bench):
    (admitted,) = bench.send(bid(deadline_s=EPOCH_S + 60))
    nodes = nodes_by_slot(admitted)
    first, second = sorted(nodes)[:2]
    for slot in range(first + 1):
        bench.send(tick(slot))
    bench.send(started(nodes[first], first, 0), progressed(nodes[first], first, 50))
    for slot in range(first + 1, second + 1):
        bench.send(tick(slot))
    (replanned,) = bench.send(started(nodes[second], second, 30))
    assert (replanned.reason, replanned.remaining_samples) == ("behind_plan", 120)


def test_a_slot_opens_with_the_prices_of_each_class_of_nodes(bench):
    bench.send(bid(speed_samples_per_s={"slow": 5.0}))
    (priced,) = [o for o in bench.send(tick(0)) if isinstance(o, ZonePriced)]
    fast, slow = priced.classes
    assert (fast.gpu_type, fast.compute_used_share, fast.highest_compute_price_micros) == ("fast", 0.0, 0.0)
    # Of the slow node's four slots the first is out, and a sixth, free one has come into the window of six.
    assert slow.compute_used_share == 3 / 6
    assert slow.highest_compute_price_micros > slow.mean_compute_price_micros > 0
    assert (priced.slot, priced.live_jobs) == (0, 1)


# Withdrawals


def test_an_unstarted_job_is_withdrawn_at_the_price_of_its_resources(bench):
    bench.send(bid("j1"), bid("j2"), bid("j3"))
    job = bench.zone.book.jobs["j3"]
    (withdrawn,) = bench.send(withdraw("j3"))
    assert isinstance(withdrawn, JobWithdrawn)
    assert withdrawn.returned_micros == 2 * UNIT
    assert withdrawn.returned_micros + withdrawn.retained_micros == job.payment_micros
    check_zone(bench.zone)


def test_a_withdrawal_is_refused(bench):
    (admitted,) = bench.send(bid(deadline_s=EPOCH_S + 40))
    assert isinstance(admitted, JobAdmitted)
    (stranger,) = bench.send(withdraw(user="someone-else"))
    (unknown,) = bench.send(withdraw("nothing"))
    late = bench.send(tick(0), withdraw())[-1]
    assert [o.reason for o in (stranger, unknown, late)] == [
        "not_the_owner",
        "unknown_job",
        "job_already_started",
    ]


# Order, duplicates, configuration


def test_the_first_event_configures_and_nothing_is_decided_before():
    bench = Bench()
    refused, early, accepted, again = bench.send(
        bid(), heartbeat("a1"), configuration(), configuration(slot_s=5.0)
    )
    assert isinstance(refused, JobRejected)
    assert refused.reason == "cell_not_configured"
    assert early.reason == "cell_not_configured"
    assert accepted == CellAccepted(reason="first_configuration", zones=("z",))
    assert again.reason == "cell_already_configured"


def test_a_repeated_event_id_changes_nothing(bench):
    bench.send(bid())
    before = bench.zone.state()
    entry = bench.ledger[-1]
    (decision,) = bench.cell.handle(type(entry)(len(bench.ledger), entry.envelope))
    assert isinstance(decision.outcome, EventIgnored)
    assert decision.outcome.reason == "duplicate_event"
    assert bench.zone.state() == before


def test_the_duplicate_window_forgets_the_oldest_id():
    bench = Bench.configured(duplicate_window_events=2)
    bench.send(bid("j1"), bid("j2"), bid("j3"))
    entry = bench.ledger[1]
    (decision,) = bench.cell.handle(type(entry)(len(bench.ledger), entry.envelope))
    assert not isinstance(decision.outcome, EventIgnored)


IGNORED = {
    "a clock that goes back": ([tick(3), tick(2)], "clock_went_back"),
    "a quote of an unknown vendor": ([vendor("stranger", 1.0, 0.0)], "unknown_vendor"),
    "a report from an unknown node": ([heartbeat("a9")], "unknown_node"),
    "a report on an unknown job": ([started("a1", 0, 0)], "unknown_job"),
    "a report from a node without the job": (
        [bid(speed_samples_per_s={"slow": 5.0}), tick(0), started("a1", 0, 0)],
        "stale_report",
    ),
}


@pytest.mark.parametrize(("events", "reason"), IGNORED.values(), ids=IGNORED.keys())
def test_it_ignores(bench, events, reason):
    outcome = bench.send(*events)[-1]
    assert isinstance(outcome, EventIgnored)
    assert outcome.reason == reason


def test_a_snapshot_goes_on_as_if_nothing_had_happened(bench):
    bench.send(online("a1"), vendor("slow", 1.0, 20.0), bid("j1"), tick(0), bid("j2", units=9.0))
    twin = Cell.restore(bench.cell.snapshot())
    assert twin.snapshot() == bench.cell.snapshot()
    ahead = Bench(cell=twin, ledger=list(bench.ledger))
    events = [bid("j3", needs_preprocessing=True), tick(1), tick(2), offline("a1"), bid("j1"), ask()]
    bench.send(*events)
    ahead.send(*events)
    assert [d.canonical for d in ahead.decisions] == [
        d.canonical for d in bench.decisions[-len(ahead.decisions) :]
    ]
    assert twin.chain == bench.cell.chain


def test_a_snapshot_of_another_version_is_refused(bench, monkeypatch):
    snapshot = bench.cell.snapshot()
    monkeypatch.setattr("streams.cell.SNAPSHOT_VERSION", 99)
    with pytest.raises(ValueError, match="delete the snapshot"):
        Cell.restore(snapshot)


def test_events_do_not_go_back(bench):
    with pytest.raises(ValueError, match="offset 0 comes after 0"):
        bench.cell.handle(bench.ledger[0])
