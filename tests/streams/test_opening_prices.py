"""A zone whose prices open at a forecast and rise with earlier bids."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.auction.evidence import ZonePriced
from schemas.auction.settings import OpeningPrices, PdftspPolicy
from schemas.base import HOURS_PER_DAY
from schemas.cells import Zone
from schemas.decisions import JobAdmitted, JobRejected
from streams.cell.state_machine import Cell
from tests.streams.test_truthfulness import COMPETITORS, MONEY, TASKS, check_never_beaten
from tests.support.cells import EPOCH_S, UNIT, Bench, bid, tick, vendor, zone
from tests.support.examples import examples

EARLIER_BIDS = 30
"""More than the twenty winners that the steepness is learnt from."""


def opening(gpu_type: str, compute_units: float, memory_units: float = 0.0) -> OpeningPrices:
    """Return opening prices that are equal in every hour."""
    return OpeningPrices(
        gpu_type=gpu_type,
        compute_micros=(compute_units * UNIT,) * HOURS_PER_DAY,
        memory_micros=(memory_units * UNIT,) * HOURS_PER_DAY,
    )


def market(*prices: OpeningPrices, steepness: str = "declared", horizon_slots: int = 6) -> Zone:
    """The zone of the other tests, under such prices."""
    return zone(
        horizon_slots=horizon_slots,
        policy=PdftspPolicy(
            kind="pdftsp",
            money_unit_micros=UNIT,
            max_value_per_compute_micros=4 * UNIT,
            max_value_per_memory_micros=4 * UNIT,
            opening_prices=prices,
            steepness=steepness,
        ),
    )


def bench_of(changed: Zone) -> Bench:
    bench = Bench.configured(zones=(changed,))
    bench.send(vendor("slow", 0.2, 20.0), vendor("fast", 1.1, 0.0))
    return bench


def test_an_empty_cell_costs_what_it_opens_at() -> None:
    # Two node-slots of a fast node (four halves), its energy 2, and a quarter of its memory four times.
    bench = bench_of(market(opening("fast", 3.0, 0.5), opening("slow", 9.0)))
    (outcome,) = bench.send(bid())
    assert isinstance(outcome, JobAdmitted)
    assert outcome.evidence.offer.price.compute_micros == 2 * 3.0 * UNIT
    assert outcome.evidence.offer.price.memory_micros == 1 * 0.5 * UNIT
    assert outcome.payment_micros == (2 + 6) * UNIT + UNIT // 2


def test_bid_below_opening_price_loses() -> None:
    (outcome,) = bench_of(market(opening("fast", 3.0), opening("slow", 9.0))).send(bid(units=8.0))
    assert isinstance(outcome, JobRejected)
    assert outcome.reason == "price_not_below_bid"
    assert outcome.evidence.offer.lowest_winning_bid_micros == 8 * UNIT + 1


def test_a_type_without_a_forecast_opens_at_zero() -> None:
    (outcome,) = bench_of(market(opening("fast", 100.0))).send(bid())
    assert {node for _, node in outcome.evidence.offer.plan.node_slots} == {"b1"}


def test_prices_follow_hour_of_slot() -> None:
    # The epoch is 1,000 s, so slot 260 begins the second hour of the day.
    hours = [0.0] * HOURS_PER_DAY
    hours[1] = 7.0 * UNIT
    later = OpeningPrices(gpu_type="fast", compute_micros=tuple(hours), memory_micros=(0.0,) * HOURS_PER_DAY)
    bench = bench_of(market(later))
    prices = {}
    for slot in (240, 262):
        bench.send(tick(slot))
        prices[slot] = bench.cell.zones["z"].auctioneer.market.compute_price[0, 0]
    assert prices == {240: 0.0, 262: 7.0 * UNIT}


def test_certificate_counts_only_usable_slots() -> None:
    # Of six slots ahead, the bid may use two: two fast nodes and a slow one, at 3 and 1 per node-slot.
    bench = bench_of(market(opening("fast", 3.0), opening("slow", 1.0)))
    (outcome,) = bench.send(bid(units=0.5, deadline_s=EPOCH_S + 20.0))
    assert outcome.evidence.certificate.dual_bound_micros == 2 * (3 + 3 + 1) * UNIT
    (outcome,) = bench.send(bid("k", units=0.5, deadline_s=EPOCH_S + 30.0))
    assert outcome.evidence.certificate.dual_bound_micros == 3 * (3 + 3 + 1) * UNIT


def test_later_slots_open_at_forecast() -> None:
    bench = bench_of(market(opening("fast", 3.0), opening("slow", 1.0)))
    outcomes = bench.send(bid(), tick(2))
    (priced,) = [outcome for outcome in outcomes if isinstance(outcome, ZonePriced)]
    assert min(prices.mean_compute_price_micros for prices in priced.classes) >= UNIT
    assert bench.cell.zones["z"].auctioneer.market.compute_price[-1].tolist() == [3 * UNIT] * 2 + [UNIT]


@settings(max_examples=examples(150), deadline=None)
@given(COMPETITORS, TASKS, MONEY, st.lists(MONEY, min_size=1, max_size=4), st.floats(0, 8), st.floats(0, 8))
def test_truth_is_best_under_forecast_prices(competitors, task, value, lies, fast, slow) -> None:
    bench = bench_of(market(opening("fast", fast), opening("slow", slow, 0.3), steepness="learned"))
    for number in range(EARLIER_BIDS):
        bench.send(bid(f"earlier{number}", 3.0 + number / 3, work_samples=10, memory_gib=0.25))
    for number, (amount, of_competitor) in enumerate(competitors):
        bench.send(bid(f"competitor{number}", amount / UNIT, **of_competitor))
    check_never_beaten(bench.cell.snapshot(), task, value, lies)


@settings(max_examples=examples(150), deadline=None)
@given(COMPETITORS, TASKS, MONEY, st.lists(MONEY, min_size=1, max_size=4), st.sampled_from([0, EARLIER_BIDS]))
def test_truth_is_best_without_bounds(competitors, task, value, lies, earlier) -> None:
    bench = bench_of(zone(horizon_slots=6, policy=PdftspPolicy(kind="pdftsp")))
    for number in range(earlier):
        bench.send(bid(f"earlier{number}", 3.0 + number / 3, work_samples=10, memory_gib=0.25))
    for number, (amount, of_competitor) in enumerate(competitors):
        bench.send(bid(f"competitor{number}", amount / UNIT, **of_competitor))
    check_never_beaten(bench.cell.snapshot(), task, value, lies)


@pytest.mark.parametrize(
    "fields",
    [
        {"money_unit_micros": UNIT},
        {"money_unit_micros": UNIT, "max_value_per_memory_micros": UNIT},
        {"steepness": "declared"},
    ],
    ids=["one bound", "two bounds", "no bound to follow"],
)
def test_missing_bounds_are_named(fields) -> None:
    with pytest.raises(ValidationError, match=r"max_value_per_compute_micros.*: missing: declare all of"):
        PdftspPolicy(kind="pdftsp", **fields)


def test_what_was_learnt_goes_into_the_snapshot() -> None:
    bench = bench_of(market(opening("fast", 0.5), steepness="learned"))
    for number in range(EARLIER_BIDS):
        bench.send(bid(f"earlier{number}", 3.0 + number, work_samples=10, memory_gib=0.25))
    other = Bench(cell=Cell.restore(bench.cell.snapshot()), ledger=list(bench.ledger))
    later = [bid("late", 30.0), bid("later", 30.0), tick(1), bid("last", 30.0)]
    assert bench.send(*later) == other.send(*later)
    assert bench.cell.snapshot() == other.cell.snapshot()


def test_learning_changes_prices_only_once_enough_have_won() -> None:
    opened = (opening("fast", 0.1), opening("slow", 0.1))
    declared, learned = bench_of(market(*opened)), bench_of(market(*opened, steepness="learned"))
    offers: list[list] = [[], []]
    for number in range(EARLIER_BIDS):
        event = bid(f"earlier{number}", 5.0, work_samples=10, memory_gib=0.25, deadline_s=EPOCH_S + 30.0)
        for bench, seen in zip((declared, learned), offers, strict=True):
            seen += [outcome.evidence.offer for outcome in bench.send(event)]
    assert offers[0][:20] == offers[1][:20]
    assert offers[0] != offers[1]


@pytest.mark.parametrize(
    ("prices", "fault"),
    [
        ((opening("medium", 1.0),), "opening prices name gpu type medium, which the zone lacks"),
        ((opening("fast", 1.0), opening("fast", 2.0)), "gpu type fast is given twice"),
    ],
)
def test_unfit_forecast_is_refused_by_name(prices, fault) -> None:
    with pytest.raises(ValidationError, match=fault):
        market(*prices)


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf"), 1e16])
def test_a_forecast_of_impossible_prices_is_refused(price) -> None:
    with pytest.raises(ValidationError):
        opening("fast", price / UNIT)


def test_losing_bids_change_no_forecast() -> None:
    bench = bench_of(market(opening("fast", 0.5), steepness="learned"))
    for number in range(EARLIER_BIDS):
        bench.send(bid(f"earlier{number}", 3.0 + number, work_samples=10, memory_gib=0.25))
    learnt = bench.cell.zones["z"].auctioneer.state()["prices"]["steepness"]
    for number in range(100):
        low = bid(f"low{number}", 1e-6)
        impossible = bid(f"impossible{number}", 1e6, deadline_s=EPOCH_S + 1.0)
        outcomes = bench.send(low, impossible)
        assert all(isinstance(outcome, JobRejected) for outcome in outcomes)
    assert bench.cell.zones["z"].auctioneer.state()["prices"]["steepness"] == learnt
