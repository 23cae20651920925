"""Orders of pre-processing: bids, deliveries and ticks in, decisions out."""

from typing import Any, Literal, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.auction.batches import SolvedPlan
from schemas.auction.bids import QuoteAccepted
from schemas.auction.deliveries import (
    ClosingReason,
    Deliveries,
    PreprocessingAccepted,
    PreprocessingClosed,
    PreprocessingDelivered,
    PreprocessingFailed,
    PreprocessingOrdered,
    delivery_path,
)
from schemas.auction.evidence import JobReplanned
from schemas.auction.settings import AuctionPolicy, EarliestFinishPolicy, TitanPolicy
from schemas.base import Event, Outcome
from schemas.changes import ZoneConfigured
from schemas.decisions import EventIgnored, JobAdmitted, JobCompleted, JobRefunded, JobWithdrawn
from schemas.facts import quoted
from schemas.fleet import RunFailed
from schemas.kind import PolicySettings
from schemas.lora_commands import SlotAssigned
from schemas.solves import SolveRequested
from streams.cell.state_machine import Cell
from tests.support.cells import (
    EPOCH_S,
    SLOT_S,
    UNIT,
    CheckedBench,
    bid,
    delivered,
    failed_order,
    finished,
    nodes_by_slot,
    offline,
    solved,
    started,
    tick,
    vendor,
    withdraw,
    zone,
)
from tests.support.examples import examples
from tests.support.sentences import check_sentences

AnyOutcome = TypeVar("AnyOutcome", bound=Outcome)
ORDERS = Deliveries(least_part=0.5)
PREPARED = {"needs_preprocessing": True, "work_samples": 100}
"""Two slots of work on 1,000 samples of data."""


def bench_with(*quotes: Event, policy: PolicySettings | None = None) -> CheckedBench:
    """A zone that orders pre-processing, and these quotes."""
    bench = CheckedBench.configured(zones=(zone(policy=policy or AuctionPolicy(deliveries=ORDERS)),))
    bench.send(*quotes)
    return bench


def ordered(*quotes: Event, **changes: Any) -> tuple[CheckedBench, JobAdmitted, PreprocessingOrdered]:
    """Job "j" with its admission and its order."""
    bench = bench_with(*(quotes or (vendor("fast", 3.0, 10.0),)))
    admitted, order = bench.send(bid(**{**PREPARED, **changes}))
    assert isinstance(admitted, JobAdmitted)
    assert isinstance(order, PreprocessingOrdered)
    return bench, admitted, order


def delivers(order: PreprocessingOrdered, samples: int = 900, **changes: Any) -> PreprocessingDelivered:
    fields = {"vendor": order.vendor, "order_id": order.order_id, "job_id": order.job_id, **changes}
    return delivered(**fields, samples=samples)


def fails(order: PreprocessingOrdered, reason: Any) -> PreprocessingFailed:
    return failed_order(order.vendor, order.order_id, order.job_id, reason)


def differs(node: str, slot: int) -> RunFailed:
    """The report of a node that holds other data than were delivered."""
    return RunFailed(
        cell="c",
        node=node,
        run_id=f"{slot}/j",
        job_id="j",
        samples_done=0,
        error="digest differs",
        permanent=True,
        cause="data_differ",
    )


def of(kind: type[AnyOutcome], outcomes: list[Outcome]) -> list[AnyOutcome]:
    return [outcome for outcome in outcomes if isinstance(outcome, kind)]


def only(kind: type[AnyOutcome], outcomes: list[Outcome]) -> AnyOutcome:
    (found,) = of(kind, outcomes)
    return found


def test_order_states_data_price_and_due_time():
    _, admitted, order = ordered(vendor("slow", 1.0, 25.0))
    assert (order.vendor, order.job_id, order.dataset.path) == ("slow", "j", "d.jsonl")
    assert (order.dataset.samples, order.least_samples) == (1_000, 500)
    assert order.price_micros == admitted.evidence.offer.price.vendor_micros == UNIT
    assert (order.due_slot, order.due_s) == (3, EPOCH_S + 3 * SLOT_S)
    assert min(nodes_by_slot(admitted)) >= 3


def test_no_order_without_pre_processing_or_conditions():
    bench = bench_with(vendor("fast", 3.0, 10.0))
    assert [type(one) for one in bench.send(bid("plain"))] == [JobAdmitted]
    assumed = CheckedBench.configured()
    assumed.send(vendor("fast", 3.0, 10.0))
    assert [type(one) for one in assumed.send(bid(**PREPARED))] == [JobAdmitted]


def test_delivery_in_time_is_paid_and_trained():
    bench, admitted, order = ordered()
    accepted = only(PreprocessingAccepted, bench.send(tick(0), delivers(order)))
    assert (accepted.reason, accepted.paid_micros) == ("in_time", 3 * UNIT)
    slots = nodes_by_slot(admitted)
    first = min(slots)
    node = slots[first]
    assigned = only(SlotAssigned, bench.send(*(tick(slot) for slot in range(1, first + 1))))
    (run,) = assigned.runs
    assert (assigned.slot, run.dataset.path, run.dataset.samples) == (
        first,
        delivery_path("c", order.vendor, order.order_id),
        900,
    )
    assert run.source == "d.jsonl"
    assert run.delivery == accepted.delivery == delivers(order).delivery
    completed = only(JobCompleted, bench.send(started(node, first, 0), finished(node, first, 100)))
    assert completed.payment_micros == admitted.payment_micros
    assert "undelivered_micros" not in completed.evidence.certificate.difference.model_dump()


def test_no_slot_is_assigned_before_the_delivery():
    bench, _, _ = ordered()
    assert of(SlotAssigned, bench.send(*(tick(slot) for slot in range(8)))) == []


def test_late_delivery_trains_by_a_new_plan():
    bench, admitted, order = ordered()
    missed = min(nodes_by_slot(admitted))
    outcomes = bench.send(*(tick(slot) for slot in range(missed + 1)))
    assert only(QuoteAccepted, outcomes).reason == "late"
    replanned = only(JobReplanned, outcomes)
    assert (replanned.reason, replanned.first_slot) == ("delivery_late", missed + 1)
    accepted = only(PreprocessingAccepted, bench.send(delivers(order)))
    assert (accepted.reason, accepted.paid_micros) == ("late", 3 * UNIT)
    begin = min(nodes_by_slot(replanned))
    assert (
        only(SlotAssigned, bench.send(*(tick(slot) for slot in range(missed + 1, begin + 1)))).slot == begin
    )


def test_late_vendor_gets_orders_after_next_quote():
    bench, _, _ = ordered()
    bench.send(*(tick(slot) for slot in range(6)))
    later = {"deadline_s": EPOCH_S + 200, **PREPARED}
    assert bench.send(bid("k", **later))[0].reason == "no_vendor"
    _, order = bench.send(vendor("fast", 3.0, 10.0), bid("l", **later))[1:]
    assert isinstance(order, PreprocessingOrdered)


def test_missing_delivery_refunds_the_job_in_full():
    bench, admitted, _ = ordered()
    outcomes = bench.send(*(tick(slot) for slot in range(8)))
    refunded = only(JobRefunded, outcomes)
    assert (refunded.refund_micros, refunded.retained_micros) == (admitted.payment_micros, 0)
    assert refunded.facts["setback"] == "delivery_late"
    closed = only(PreprocessingClosed, outcomes)
    assert (closed.reason, closed.returned_micros) == ("job_over", 0)
    assert refunded.evidence.certificate.difference.undelivered_micros == 3 * UNIT
    check_sentences(bench.decisions)


def test_second_delivery_is_ignored():
    bench, _, order = ordered()
    bench.send(delivers(order))
    ignored = only(EventIgnored, bench.send(delivers(order, samples=700)))
    assert ignored.reason == "order_is_over"
    assert bench.job("j")["order"]["delivery"]["samples"] == 900


@pytest.mark.parametrize(
    "changes", [{"vendor": "slow"}, {"order_id": "9/j"}, {"job_id": "k"}], ids=["vendor", "order", "job"]
)
def test_delivery_of_nothing_ordered_is_ignored(changes):
    bench, _, order = ordered()
    assert only(EventIgnored, bench.send(delivers(order, **changes))).reason == "unknown_order"
    assert bench.job("j")["state"] == "awaiting_delivery"


def test_vendor_unknown_to_the_cell_delivers_nothing():
    bench, _, order = ordered()
    assert only(EventIgnored, bench.send(delivers(order, vendor="stranger"))).reason == "unknown_vendor"


def test_withdrawal_before_delivery_keeps_price_of_vendor():
    bench, admitted, order = ordered()
    outcomes = bench.send(withdraw())
    withdrawn = only(JobWithdrawn, outcomes)
    price = admitted.evidence.offer.price
    assert withdrawn.returned_micros == price.operational_micros
    assert only(PreprocessingClosed, outcomes).reason == "job_over"
    assert withdrawn.evidence.certificate.realised_welfare_micros == 0
    assert only(EventIgnored, bench.send(delivers(order))).reason == "unknown_order"


def test_withdrawal_after_delivery_costs_the_vendors_price():
    bench, _, order = ordered()
    bench.send(delivers(order))
    withdrawn = only(JobWithdrawn, bench.send(withdraw()))
    assert withdrawn.evidence.certificate.realised_welfare_micros == -3 * UNIT


def test_late_data_let_a_job_be_withdrawn():
    bench, admitted, _ = ordered()
    bench.send(*(tick(slot) for slot in range(min(nodes_by_slot(admitted)) + 1)))
    only(JobWithdrawn, bench.send(withdraw()))


def test_delivery_after_end_of_job_is_ignored():
    bench, _, order = ordered()
    bench.send(*(tick(slot) for slot in range(8)))
    assert only(EventIgnored, bench.send(delivers(order))).reason == "unknown_order"


@pytest.mark.parametrize("samples", [499, 1_001])
def test_delivery_of_wrong_size_is_not_paid(samples):
    bench, admitted, order = ordered()
    closed, refunded = bench.send(delivers(order, samples=samples))
    assert (closed.reason, closed.returned_micros) == ("wrong_size", 0)
    assert closed.facts == {"samples": samples, "least_samples": 500, "most_samples": 1_000}
    assert (refunded.reason, refunded.refund_micros) == ("delivery_failed", admitted.payment_micros)
    check_sentences(bench.decisions)


@pytest.mark.parametrize(
    "path",
    [
        "d.jsonl",
        "of another user.jsonl",
        "private/other-user.jsonl",
        "prepared/c/slow/0/j.jsonl",
        "prepared/c/fast/0/k.jsonl",
    ],
)
def test_other_file_than_ordered_is_not_paid(path):
    bench, admitted, order = ordered()
    closed, refunded = bench.send(delivers(order, path=path))
    assert (closed.reason, closed.returned_micros) == ("wrong_path", 0)
    assert closed.facts == {"path": quoted(path), "ordered_path": "prepared/c/fast/0/j.jsonl"}
    assert (refunded.reason, refunded.refund_micros) == ("delivery_failed", admitted.payment_micros)
    check_sentences(bench.decisions)


FAULTS: dict[ClosingReason, str] = {
    "data_missing": "dataset_unfit",
    "data_unreadable": "dataset_unfit",
    "too_little_left": "dataset_unfit",
    "more_data_than_ordered": "dataset_size_misstated",
}


@pytest.mark.parametrize(("reason", "end"), FAULTS.items())
def test_unfit_data_end_the_job_like_a_withdrawal(reason, end):
    bench, admitted, order = ordered()
    closed, refunded = bench.send(fails(order, reason))
    price = admitted.evidence.offer.price
    assert (closed.reason, refunded.reason) == (reason, end)
    assert refunded.refund_micros == price.operational_micros
    check_sentences(bench.decisions)


def test_order_of_failed_vendor_goes_to_another():
    bench, admitted, order = ordered(vendor("slow", 1.0, 10.0), vendor("fast", 2.0, 10.0))
    assert order.vendor == "slow"
    closed, again = bench.send(fails(order, "vendor_unable"))
    assert isinstance(again, PreprocessingOrdered)
    assert (again.vendor, again.price_micros, again.due_slot) == ("fast", 2 * UNIT, 1)
    assert closed.returned_micros == 0
    bench.send(delivers(again))
    assert only(SlotAssigned, bench.send(*map(tick, range(min(nodes_by_slot(admitted)) + 1)))).runs
    difference = bench.described["certificate"]["difference"]
    assert difference["undelivered_micros"] == UNIT
    assert difference["replanned_micros"] == -2 * UNIT


def test_slower_vendor_moves_the_plan():
    bench, _, order = ordered(vendor("slow", 2.0, 30.0), vendor("fast", 1.0, 0.0), units=90)
    assert order.vendor == "fast"
    outcomes = bench.send(fails(order, "vendor_unable"))
    assert only(PreprocessingOrdered, outcomes).due_slot == 3
    assert min(nodes_by_slot(only(JobReplanned, outcomes))) >= 3


def test_no_time_for_another_vendor_refunds_the_job():
    bench, admitted, order = ordered(vendor("slow", 2.0, 50.0), vendor("fast", 1.0, 0.0))
    outcomes = bench.send(fails(order, "vendor_unable"))
    assert of(PreprocessingOrdered, outcomes) == []
    assert only(JobRefunded, outcomes).refund_micros == admitted.payment_micros


def test_vendor_dearer_than_the_payment_gets_no_order():
    bench, admitted, order = ordered(vendor("slow", 10.0**6, 0.0), vendor("fast", 1.0, 10.0))
    assert only(JobRefunded, bench.send(fails(order, "vendor_unable"))).reason == "delivery_failed"
    assert admitted.payment_micros < 10**6 * UNIT


def run_of(bench: CheckedBench, admitted: JobAdmitted) -> tuple[str, int]:
    """Begin the first slot of job "j"; its node and slot."""
    slots = nodes_by_slot(admitted)
    first = min(slots)
    bench.send(*map(tick, range(first + 1)))
    return slots[first], first


def test_data_differing_on_the_node_are_paid_back():
    bench, admitted, order = ordered()
    bench.send(delivers(order))
    outcomes = bench.send(differs(*run_of(bench, admitted)))
    closed, refunded = only(PreprocessingClosed, outcomes), only(JobRefunded, outcomes)
    assert (closed.reason, closed.returned_micros) == ("data_differ", 3 * UNIT)
    assert (refunded.reason, refunded.refund_micros) == ("delivery_failed", admitted.payment_micros)
    assert refunded.evidence.certificate.difference.undelivered_micros == 3 * UNIT
    check_sentences(bench.decisions)


def test_data_differing_at_first_are_ordered_elsewhere():
    bench, admitted, order = ordered(vendor("slow", 1.0, 0.0), vendor("fast", 2.0, 0.0))
    bench.send(delivers(order))
    outcomes = bench.send(differs(*run_of(bench, admitted)))
    again = only(PreprocessingOrdered, outcomes)
    assert again.vendor == "fast"
    replanned = only(JobReplanned, outcomes)
    assert (replanned.reason, replanned.remaining_samples) == ("delivery_failed", 100)
    assert of(QuoteAccepted, bench.send(delivers(again), tick(1))) == []


def test_data_differing_after_training_end_the_job():
    bench, admitted, order = ordered(vendor("slow", 1.0, 0.0), vendor("fast", 2.0, 0.0))
    bench.send(delivers(order))
    node, slot = run_of(bench, admitted)
    outcomes = bench.send(started(node, slot, 0), differs(node, slot))
    assert only(JobRefunded, outcomes).retained_micros == 0


def test_lost_node_moves_a_waiting_plan():
    bench, admitted, order = ordered()
    first = min(nodes_by_slot(admitted))
    replanned = only(JobReplanned, bench.send(offline(nodes_by_slot(admitted)[first])))
    assert replanned.reason == "node_lost"
    bench.send(delivers(order))
    begin = min(nodes_by_slot(replanned))
    assert only(SlotAssigned, bench.send(*map(tick, range(begin + 1)))).slot == begin


def test_zone_that_ceases_to_order_keeps_its_orders():
    bench, _, order = ordered()
    bench.send(ZoneConfigured(cell="c", zone=zone(policy=AuctionPolicy())))
    assert only(PreprocessingAccepted, bench.send(delivers(order))).paid_micros == 3 * UNIT
    assert [type(one) for one in bench.send(bid("k", **PREPARED))] == [JobAdmitted]


@pytest.mark.parametrize("kind", ["eft", "titan"])
def test_baselines_order_too(kind: Literal["eft", "titan"]):
    policy = (
        EarliestFinishPolicy(kind="eft", deliveries=ORDERS)
        if kind == "eft"
        else TitanPolicy(kind="titan", deliveries=ORDERS)
    )
    bench = bench_with(tick(0), vendor("fast", 3.0, 0.0), policy=policy)
    outcomes = bench.send(bid(**PREPARED), tick(0.6))
    for requested in of(SolveRequested, outcomes):
        plan = SolvedPlan(job_id="j", node_slots=((1, "a1"), (2, "a1")))
        outcomes = bench.send(solved(requested, plan))
    assert only(PreprocessingOrdered, outcomes).vendor == "fast"


STEPS = st.lists(
    st.sampled_from(["tick", "deliver", "late", "unable", "unfit", "small", "twice", "withdraw", "differ"]),
    max_size=14,
)


@settings(max_examples=examples(300), deadline=None, derandomize=True, database=None)
@given(STEPS, st.integers(0, 30), st.booleans())
def test_every_history_of_an_order_pays_exactly(steps: list[str], delay_s: int, has_second: bool) -> None:
    others = (vendor("slow", 4.0, 10.0),) if has_second else ()
    bench, admitted, order = ordered(vendor("fast", 3.0, float(delay_s)), *others, units=90)
    slot = 0
    for step in [*steps, *(["tick"] * 8)]:
        order = ([order, *of(PreprocessingOrdered, [one.outcome for one in bench.decisions])])[-1]
        match step:
            case "tick" | "late":
                bench.send(tick(slot))
                slot += 1
            case "deliver" | "twice":
                bench.send(delivers(order))
            case "unable":
                bench.send(fails(order, "vendor_unable"))
            case "unfit":
                bench.send(fails(order, "data_missing"))
            case "small":
                bench.send(delivers(order, samples=1))
            case "withdraw":
                bench.send(withdraw())
            case "differ" if "j" in bench.described["jobs"]:
                for part in bench.job("j")["plan"]:
                    bench.send(differs(part["node"], part["slot"]))
        check_history(bench, admitted)
    assert Cell.restore(bench.cell.snapshot()).snapshot() == bench.cell.snapshot()


def check_history(bench: CheckedBench, admitted: JobAdmitted) -> None:
    """Check that no run precedes a delivery, that a vendor has its price for a kept delivery alone, and that
    the user's sums add up."""
    outcomes = [decision.outcome for decision in bench.decisions]
    kept: dict[str, int] = {}
    for outcome in outcomes:
        match outcome:
            case SlotAssigned():
                assert kept, "a run before a delivery"
                assert all(order.delivery is not None for order in outcome.runs)
            case PreprocessingAccepted():
                assert outcome.order_id + outcome.vendor not in kept, "paid twice"
                kept[outcome.order_id + outcome.vendor] = outcome.paid_micros
            case PreprocessingClosed():
                paid = kept.pop(outcome.order_id + outcome.vendor, 0)
                assert outcome.returned_micros == paid, "what is returned is what was paid"
            case JobRefunded():
                assert outcome.refund_micros + outcome.retained_micros == admitted.payment_micros
            case JobWithdrawn():
                assert outcome.returned_micros + outcome.retained_micros == admitted.payment_micros
    assert len(kept) <= 1, "one vendor at most is paid for a job"
