"""Each baseline of the auction decides bids (section 5.1)."""

import pytest

from schemas.auction.evidence import JobReplanned
from schemas.auction.settings import EarliestFinishPolicy, FixedPricePolicy, NoMergingPolicy
from schemas.decisions import JobAdmitted, JobQuoted, JobRejected, JobWithdrawn
from tests.support.cells import (
    EPOCH_S,
    UNIT,
    CheckedBench,
    ask,
    bid,
    nodes_by_slot,
    offline,
    vendor,
    withdraw,
    zone,
)

EFT = EarliestFinishPolicy(kind="eft")
NTM = NoMergingPolicy(kind="ntm")


def fixed_price(units_per_thousand: float) -> FixedPricePolicy:
    return FixedPricePolicy(
        kind="fixed_price", price_per_thousand_samples_micros=int(units_per_thousand * UNIT)
    )


def under(policy) -> CheckedBench:
    return CheckedBench.configured(zones=(zone(policy=policy),))


SPEEDS = {"fast": 10.0, "slow": 5.0}


def test_eft_trains_next_on_fastest_class_at_cost():
    bench = under(EFT)
    (admitted,) = bench.send(bid(speed_samples_per_s=SPEEDS, work_samples=200))
    assert isinstance(admitted, JobAdmitted)
    assert nodes_by_slot(admitted) == {0: "a1", 1: "a1"}
    assert admitted.payment_micros == admitted.evidence.offer.price.operational_micros == 2 * UNIT


def test_eft_fills_a_node_before_it_begins_another():
    bench = under(EFT)
    half = {"fast": 5.0}
    outcomes = bench.send(*[bid(f"j{n}", speed_samples_per_s=half, work_samples=50) for n in range(3)])
    assert [nodes_by_slot(outcome) for outcome in outcomes] == [{0: "a1"}, {0: "a1"}, {0: "a2"}]


def test_eft_takes_the_fastest_vendor_however_dear():
    bench = under(EFT)
    bench.send(vendor("slow", 0.0, 10.0), vendor("fast", 5.0, 0.0))
    (admitted,) = bench.send(bid(needs_preprocessing=True))
    assert admitted.evidence.offer.plan.vendor == "fast"
    assert admitted.evidence.offer.price.vendor_micros == 5 * UNIT


def test_eft_rejects_a_task_that_would_lose_money():
    rejected, admitted = under(EFT).send(bid("j1", units=2.0), bid("j2", units=2.000001))
    assert isinstance(rejected, JobRejected)
    assert rejected.reason == "price_not_below_bid"
    assert isinstance(admitted, JobAdmitted)


def test_eft_rejects_what_finds_no_room():
    bench = under(EFT)
    whole = {"fast": 10.0, "slow": 5.0}
    bids = [
        bid(f"j{n}", speed_samples_per_s=whole, work_samples=500, memory_gib=0.5, deadline_s=EPOCH_S + 60)
        for n in range(4)
    ]
    *_, last = bench.send(*bids)
    assert last.reason == "no_room_before_deadline"


def test_ntm_gives_each_task_its_own_node():
    bench = under(NTM)
    small = {"speed_samples_per_s": {"fast": 1.0}, "work_samples": 10, "memory_gib": 0.5}
    outcomes = bench.send(*[bid(f"j{n}", **small) for n in range(4)])
    assert [nodes_by_slot(outcome) for outcome in outcomes] == [
        {0: "a1"},
        {0: "a2"},
        {1: "a1"},
        {1: "a2"},
    ]


def test_ntm_replans_lost_task_on_own_nodes():
    bench = under(NTM)
    small = {"speed_samples_per_s": {"fast": 1.0}, "work_samples": 20, "memory_gib": 0.5}
    bench.send(bid("j1", **small), bid("j2", **small))
    _, replanned = bench.send(offline("a1"))
    assert isinstance(replanned, JobReplanned)
    assert nodes_by_slot(replanned) == {2: "a2", 3: "a2"}


TINY = {"needs_preprocessing": True, "speed_samples_per_s": {"fast": 1.0}, "memory_gib": 0.5}


def vendors_of_ntm(*bids) -> list[str | None]:
    bench = under(NTM)
    bench.send(vendor("slow", 0.0, 20.0), vendor("fast", 1.0, 0.0))
    return [outcome.evidence.offer.plan.vendor for outcome in bench.send(*bids)]


def test_ntm_draws_vendor_by_job_id():
    bids = [bid(f"j{number}", work_samples=10, **TINY) for number in range(8)]
    drawn = vendors_of_ntm(*bids)
    assert set(drawn) == {"slow", "fast"}
    assert drawn[3] == vendors_of_ntm(bids[3])[0]


def test_ntm_draws_among_vendors_in_time():
    assert {vendors_of_ntm(bid(f"j{number}", work_samples=50, **TINY))[0] for number in range(8)} == {"fast"}


def test_fixed_price_charges_exactly_its_price():
    bench = under(fixed_price(20.0))
    bench.send(vendor("slow", 1.0, 20.0), vendor("fast", 3.0, 0.0))
    leisurely, hurried = bench.send(
        bid("j1", needs_preprocessing=True), bid("j2", needs_preprocessing=True, work_samples=250)
    )
    assert (leisurely.evidence.offer.plan.vendor, leisurely.payment_micros) == ("slow", 5 * UNIT)
    assert (hurried.evidence.offer.plan.vendor, hurried.payment_micros) == ("fast", 8 * UNIT)
    assert min(nodes_by_slot(leisurely)) == 2


def test_fixed_price_admits_only_above_the_price():
    at, above = under(fixed_price(20.0)).send(bid("j1", units=4.0), bid("j2", units=4.000001))
    assert at.reason == "price_not_below_bid"
    assert above.payment_micros == 4 * UNIT


def test_fixed_price_keeps_payment_of_withdrawn_job():
    _, withdrawn = under(fixed_price(20.0)).send(bid(), withdraw())
    assert isinstance(withdrawn, JobWithdrawn)
    assert (withdrawn.returned_micros, withdrawn.retained_micros) == (0, 4 * UNIT)


@pytest.mark.parametrize("policy", [EFT, NTM, fixed_price(20.0)], ids=lambda policy: policy.kind)
def test_a_quote_is_what_a_bid_then_pays(policy):
    quoted, admitted = under(policy).send(ask(), bid())
    assert isinstance(quoted, JobQuoted)
    assert quoted.reason == "plan_found"
    assert quoted.evidence.offer == admitted.evidence.offer
    assert admitted.payment_micros <= quoted.evidence.offer.lowest_winning_bid_micros
