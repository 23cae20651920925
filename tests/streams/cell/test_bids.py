"""Bids, quotes and vendors: what a bid meets, and why it loses."""

import pytest

from infra.views.sentences import sentence
from schemas.cells import GpuType
from schemas.decisions import JobAdmitted, JobQuoted, JobRejected
from tests.support.cells import (
    EPOCH_S,
    UNIT,
    CheckedBench,
    ask,
    bid,
    nodes_by_slot,
    tick,
    vendor,
    vendor_left,
    zone,
)


def test_bid_in_empty_cell_pays_operational_cost(bench):
    (admitted,) = bench.send(bid())
    assert isinstance(admitted, JobAdmitted)
    # Four slots of half a fast node, or of a whole slow one: both cost half a unit per slot.
    assert admitted.payment_micros == 2 * UNIT
    assert admitted.evidence.offer.price.operational_micros == 2 * UNIT
    assert len(admitted.evidence.offer.plan.node_slots) == 4
    assert admitted.evidence.certificate.planned_welfare_micros == 48 * UNIT
    assert admitted.evidence.certificate.dual_bound_micros >= 48 * UNIT


def test_second_bid_pays_for_scarcity_of_first():
    bench = CheckedBench.configured(zones=(zone(nodes=zone().nodes[:1], horizon_slots=4),))
    first, second = bench.send(bid("j1", deadline_s=EPOCH_S + 40), bid("j2", deadline_s=EPOCH_S + 40))
    assert isinstance(first, JobAdmitted)
    assert isinstance(second, JobRejected)
    assert second.reason == "price_not_below_bid"
    lowest = second.evidence.offer.lowest_winning_bid_micros
    (third,) = bench.send(bid("j3", units=lowest / UNIT, deadline_s=EPOCH_S + 40))
    assert isinstance(third, JobAdmitted)
    assert third.payment_micros <= lowest


def test_bid_at_price_loses_and_micro_more_wins(bench):
    (quoted,) = bench.send(ask())
    lowest = quoted.evidence.offer.lowest_winning_bid_micros
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
    assert sentence(rejected)


def test_rejection_names_limiting_resource_and_earliest_deadline():
    bench = CheckedBench.configured(zones=(zone(nodes=zone().nodes[2:]),))
    held, rejected = bench.send(
        bid("j1", deadline_s=EPOCH_S + 40), bid("j2", units=10**6, work_samples=100, deadline_s=EPOCH_S + 40)
    )
    assert isinstance(held, JobAdmitted)
    assert rejected.reason == "no_room_before_deadline"
    assert rejected.evidence.offer.room.binding == "compute"
    assert rejected.evidence.offer.room.without_compute == 4
    assert rejected.evidence.offer.earliest_deadline_s == EPOCH_S + 60


def test_a_job_id_is_decided_once(bench):
    _, again = bench.send(bid(), bid(units=60.0))
    assert (again.reason, bench.job("j")["bid_micros"]) == ("duplicate_job", 50 * UNIT)


def test_the_vendor_is_part_of_the_search(bench):
    bench.send(vendor("slow", 1.0, 20.0), vendor("fast", 5.0, 0.0))
    (leisurely,) = bench.send(bid("j1", needs_preprocessing=True))
    assert leisurely.evidence.offer.plan.vendor == "slow"
    assert min(nodes_by_slot(leisurely)) >= 2
    (urgent,) = bench.send(bid("j2", needs_preprocessing=True, deadline_s=EPOCH_S + 40))
    assert urgent.evidence.offer.plan.vendor == "fast"
    bench.send(vendor_left("fast"))
    (hopeless,) = bench.send(bid("j3", needs_preprocessing=True, deadline_s=EPOCH_S + 40))
    assert hopeless.reason == "deadline_too_soon"


def test_quote_matches_bid_and_changes_nothing(bench):
    bench.send(bid("j1"))
    before = bench.zone.state()
    (quoted,) = bench.send(ask())
    assert isinstance(quoted, JobQuoted)
    assert bench.zone.state() == before
    (admitted,) = bench.send(bid("j2"))
    assert admitted.evidence.offer == quoted.evidence.offer


def test_oversized_amounts_and_texts_are_still_decided(bench):
    many = {f"g{number:02d}{'x' * 120}": 1.0 for number in range(16)}
    (rejected,) = bench.send(bid("j1", speed_samples_per_s=many))
    assert rejected.reason == "unknown_gpu_type"
    bench.send(vendor("slow", 10**9, 0.0))
    (dear,) = bench.send(bid("j2", needs_preprocessing=True))
    assert dear.evidence.offer.lowest_winning_bid_micros > 10**15
    for number in range(8):
        bench.send(bid(f"rich{number}", 10**9, work_samples=1, deadline_s=EPOCH_S + 10))
    bench.send(bid("j3", work_samples=10), tick(10**8), bid("j4", deadline_s=EPOCH_S + 10.0**9 + 100))


def test_plan_may_exceed_largest_work():
    fast = GpuType(name="fast", samples_per_s=10.0**9, memory_gib=10.0)
    bench = CheckedBench.configured(slot_s=600.0, zones=(zone(gpu_types=(fast,), nodes=zone().nodes[:2]),))
    (admitted,) = bench.send(
        bid(work_samples=10**12, deadline_s=EPOCH_S + 3_600, speed_samples_per_s={"fast": 1e9})
    )
    assert admitted.evidence.offer.plan.samples == 12 * 10**11
