"""A zone with nothing declared finds its prices itself: truthful, in any money, and never falling at once."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.auction.bids import VendorQuoted
from schemas.auction.evidence import JobReplanned
from schemas.auction.settings import AuctionPolicy
from schemas.base import HOURS_PER_DAY, Event
from schemas.cells import CellConfigured, Tariff
from schemas.decisions import JobAdmitted, JobQuoted, JobRefunded, JobRejected
from schemas.jobs import JobSubmitted
from streams.cell.state_machine import Cell
from tests.streams.test_truthfulness import COMPETITORS, MONEY, TASKS, check_never_beaten
from tests.streams.test_withdrawal_truthfulness import LATER_COMPETITORS, check_no_strategy_gains
from tests.support.cells import (
    EPOCH_S,
    SLOT_S,
    UNIT,
    Bench,
    ask,
    bid,
    configuration,
    tick,
    vendor,
    with_bid,
    withdraw,
    zone,
)
from tests.support.examples import examples
from tests.support.histories import recorded

DEFAULT = zone(policy=AuctionPolicy())
EARLIER = st.lists(st.lists(st.tuples(MONEY, TASKS, st.booleans()), max_size=4), max_size=5)
"""Slot by slot, who bids, and whether they withdraw."""
IDLE_SLOTS = st.sampled_from([0, 1, 3, 30])
"""Thirty are more than the prices remember."""


def later(task: dict[str, Any], slot: int) -> dict[str, Any]:
    """Return the task, `slot` slots later."""
    return task | {"deadline_s": task["deadline_s"] + SLOT_S * slot}


def warm(earlier, idle_slots: int, competitors) -> tuple[Bench, int]:
    """A cell that has decided bids for some slots and then others in the present one, and that slot."""
    bench = Bench.configured(zones=(DEFAULT,))
    bench.send(vendor("slow", 0.2, 20.0), vendor("fast", 1.1, 0.0))
    slot = 0
    for slot, bids in enumerate(earlier):
        bench.send(tick(slot))
        for number, (amount, task, regrets) in enumerate(bids):
            bench.send(bid(f"early{slot}-{number}", amount / UNIT, **later(task, slot)))
            if regrets:
                bench.send(withdraw(f"early{slot}-{number}"))
    slot += idle_slots
    bench.send(tick(slot))
    for number, (amount, task) in enumerate(competitors):
        bench.send(bid(f"competitor{number}", amount / UNIT, **later(task, slot)))
    return bench, slot


@pytest.mark.timeout(1_800)
@settings(max_examples=examples(10_000), deadline=None)
@given(EARLIER, IDLE_SLOTS, COMPETITORS, TASKS, MONEY, st.lists(MONEY, min_size=1, max_size=4))
def test_truth_is_best_cold_or_warm(earlier, idle_slots, competitors, task, value, lies):
    bench, slot = warm(earlier, idle_slots, competitors)
    check_never_beaten(bench.cell.snapshot(), later(task, slot), value, lies)


@settings(max_examples=examples(1_000), deadline=None)
@given(
    EARLIER,
    IDLE_SLOTS,
    COMPETITORS,
    LATER_COMPETITORS,
    TASKS,
    MONEY,
    st.lists(MONEY, min_size=2, max_size=2),
    st.lists(st.tuples(MONEY, TASKS), min_size=1, max_size=3),
)
def test_no_strategy_with_withdrawals_gains_cold_or_warm(
    earlier, idle_slots, competitors, coming, task, value, bids, sybils
):
    bench, slot = warm(earlier, idle_slots, competitors)
    check_no_strategy_gains(
        bench.cell.snapshot(),
        [(micros, later(other, slot)) for micros, other in coming],
        later(task, slot),
        value,
        bids,
        [(micros, later(other, slot)) for micros, other in sybils],
    )


def price(bench: Bench, task: dict[str, Any]) -> float:
    """The least bid that wins; infinite where none does."""
    (quoted,) = bench.send(ask(**task))
    assert isinstance(quoted, JobQuoted)
    lowest = quoted.evidence.lowest_winning_bid_micros
    return float("inf") if lowest is None else lowest


@settings(max_examples=examples(1_000), deadline=None)
@given(EARLIER, IDLE_SLOTS, COMPETITORS, TASKS, st.sampled_from([1.01, 1.1, 1.5, 2.0]))
def test_more_memory_lowers_no_price(earlier, idle_slots, competitors, task, factor):
    bench, slot = warm(earlier, idle_slots, competitors)
    mine = later(task, slot)
    assert price(bench, mine | {"memory_gib": mine["memory_gib"] * factor}) >= price(bench, mine)


@settings(max_examples=examples(1_000), deadline=None)
@given(EARLIER, IDLE_SLOTS, COMPETITORS, TASKS)
def test_bid_lowers_no_later_price_of_slot(earlier, idle_slots, competitors, task):
    bench, slot = warm(earlier, idle_slots, [])
    mine = later(task, slot)
    before = price(bench, mine)
    for number, (amount, other) in enumerate([*competitors, (0, task), (30 * UNIT, task)]):
        bench.send(bid(f"competitor{number}", amount / UNIT, **later(other, slot)))
        after = price(bench, mine)
        assert after >= before
        before = after


@settings(max_examples=examples(1_000), deadline=None)
@given(st.lists(COMPETITORS, min_size=1, max_size=4), TASKS)
def test_waiting_lowers_price_by_fall_at_most(by_slot, task):
    """A price of p is at least (1 - f) p a slot later, where f is `Levels.fall`: 5 / (5 + span), and no
    more than a half. So whoever waits within the horizon gains no more than f of the price."""
    bench = Bench.configured(zones=(DEFAULT,))
    bench.send(vendor("slow", 0.2, 20.0), vendor("fast", 1.1, 0.0))
    for slot, competitors in enumerate(by_slot):
        outcomes = bench.send(tick(slot))
        if any(isinstance(outcome, JobReplanned | JobRefunded) for outcome in outcomes):
            return
        for number, (amount, other) in enumerate(competitors):
            bench.send(bid(f"{slot}-{number}", amount / UNIT, **later(other, slot)))
        # Within the horizon: what opens later is room that comes.
        mine = task | {"deadline_s": min(task["deadline_s"], EPOCH_S + 6 * SLOT_S) + SLOT_S * (slot + 1)}
        posted = bench.zone.auctioneer.prices
        least = (1 - posted.levels.fall(posted.curve)) * (price(bench, mine) - 1)
        twin = Bench(Cell.restore(bench.cell.snapshot()), list(bench.ledger))
        outcomes = twin.send(tick(slot + 1))
        if not any(isinstance(outcome, JobReplanned | JobRefunded) for outcome in outcomes):
            assert price(twin, mine) >= least


FACTOR = 1_000


def dearer(event: Event) -> Event:
    """Return the event in another currency."""
    match event:
        case JobSubmitted():
            return with_bid(event, event.terms.bid_micros * FACTOR)
        case VendorQuoted():
            return event.model_copy(update={"fixed_price_micros": event.fixed_price_micros * FACTOR})
        case CellConfigured():
            return event.model_copy(update={"tariffs": tuple(dearer_tariff(t) for t in event.tariffs)})
        case _:
            return event


def dearer_tariff(tariff: Tariff) -> Tariff:
    return tariff.model_copy(
        update={"micros_per_kwh": tuple(micros * FACTOR for micros in tariff.micros_per_kwh)}
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("micros_per_kwh", [360 * UNIT, 0], ids=["energy", "free"])
def test_unit_of_money_scales_decisions(seed, micros_per_kwh):
    """At tariffs and speeds at which every node-slot costs whole micros. Payments are rounded up to the next
    micro, and where energy costs anything, so is down what a bid can at least cost: an offer is then a micro
    too high, which is a hundred-thousandth of what it leads to at most."""
    market = configuration(
        zones=(DEFAULT,), tariffs=(Tariff(name="t", micros_per_kwh=(micros_per_kwh,) * HOURS_PER_DAY),)
    )
    events = recorded(random.Random(f"money/{seed}"), market, bids=120, bids_per_slot=8)
    cheap, dear = Bench(), Bench()
    admitted = 0
    for event in events:
        for one, other in zip(cheap.send(event), dear.send(dearer(event)), strict=True):
            assert type(one) is type(other)
            match one:
                case JobAdmitted():
                    assert one.evidence.offer.plan == other.evidence.offer.plan
                    paid = FACTOR * one.payment_micros
                    off = paid * 1e-5 if micros_per_kwh else 0
                    assert paid - FACTOR - off < other.payment_micros <= paid + off
                    admitted += 1
                case JobRejected() | JobRefunded():
                    assert one.reason == other.reason
                case JobReplanned():
                    assert one.plan == other.plan
    assert admitted > 20


@pytest.mark.slow
def test_rounding_of_small_costs_changes_few_bids():
    """A node-slot costs 342.9 micros, which no money has: one bid in 180 of twelve such days was decided
    otherwise."""
    tariffs = (Tariff(name="t", micros_per_kwh=(123_457,) * HOURS_PER_DAY),)
    decided = otherwise = 0
    for seed in range(3):
        market = configuration(zones=(DEFAULT,), tariffs=tariffs)
        cheap, dear = Bench(), Bench()
        for event in recorded(random.Random(f"money/{seed}"), market, bids=120, bids_per_slot=8):
            for one, other in zip(cheap.send(event), dear.send(dearer(event)), strict=True):
                if isinstance(one, JobAdmitted | JobRejected):
                    decided += 1
                    otherwise += type(one) is not type(other)
    assert decided == 3 * 120
    assert otherwise <= 0.02 * decided


@pytest.mark.parametrize("blocks", [False, True])
def test_excluding_others_until_next_slot_may_gain(blocks):
    """Limit of the claim: a bid that is withdrawn a slot later has kept others out, and is undone with that
    slot. One node is free for three slots, and each task takes it for two."""
    bench = Bench.configured(zones=(zone(policy=AuctionPolicy(), nodes=zone().nodes[:1]),))
    task = {"work_samples": 200, "deadline_s": EPOCH_S + 4 * SLOT_S, "speed_samples_per_s": {"fast": 10.0}}
    bench.send(tick(0))
    if blocks:
        bench.send(bid("trial", 1_000.0, **task))
    bench.send(bid("other", 20.0, user="other", **task))
    if blocks:
        (withdrawn,) = bench.send(withdraw("trial"))
        assert withdrawn.retained_micros == 2 * UNIT // 8
    bench.send(tick(1))
    (mine,) = bench.send(bid("mine", 10.0, **task))
    assert isinstance(mine, JobAdmitted) == blocks
