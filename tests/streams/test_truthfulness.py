"""No misreport of the bid ever gains, no user pays more than the bid, and no price depends on the bid."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.auction.settings import PdftspPolicy
from schemas.decisions import JobAdmitted, JobWithdrawn
from streams.cell.state_machine import Cell
from tests.support.cells import EPOCH_S, UNIT, Bench, bid, tick, vendor, withdraw, zone
from tests.support.examples import examples

MONEY = st.integers(0, 30 * UNIT)
TASKS = st.fixed_dictionaries(
    {
        "work_samples": st.integers(1, 350),
        "deadline_s": st.integers(1, 7).map(lambda slots: EPOCH_S + 10.0 * slots),
        "memory_gib": st.sampled_from([0.5, 1.0, 2.0, 3.7]),
        "speed_samples_per_s": st.fixed_dictionaries(
            {"fast": st.sampled_from([2.0, 3.3, 5.0]), "slow": st.sampled_from([1.0, 2.5])}
        ),
        "needs_preprocessing": st.booleans(),
    }
)
COMPETITORS = st.lists(st.tuples(MONEY, TASKS), max_size=6)


def market_after(competitors, **changes) -> bytes:
    """Snapshot of a cell that has decided some bids already."""
    bench = Bench.configured(**changes)
    bench.send(vendor("slow", 0.2, 20.0), vendor("fast", 1.1, 0.0))
    for number, (amount, task) in enumerate(competitors):
        bench.send(bid(f"competitor{number}", amount / UNIT, **task))
    return bench.cell.snapshot()


def outcome_of(snapshot: bytes, bid_micros: int, task):
    bench = Bench(cell=Cell.restore(snapshot))
    bench.ledger = [None] * (bench.cell.offset + 1)
    (outcome,) = bench.send(bid("mine", bid_micros / UNIT, **task))
    return outcome, bench


def utility(value: int, outcome) -> int:
    return value - outcome.payment_micros if isinstance(outcome, JobAdmitted) else 0


@settings(max_examples=examples(400), deadline=None)
@given(COMPETITORS, TASKS, MONEY, st.lists(MONEY, min_size=1, max_size=4))
def test_truth_is_never_beaten_and_loses_nothing(competitors, task, value, lies):
    check_never_beaten(market_after(competitors), task, value, lies)


def check_never_beaten(snapshot: bytes, task, value: int, lies: list[int]) -> None:
    """No lie about the value brings more than the truth, and the truth costs nothing.

    Raises:
        AssertionError: naming what does not hold.
    """
    truthful, _ = outcome_of(snapshot, value, task)
    best = utility(value, truthful)
    assert best >= 0
    offer = truthful.evidence.offer
    if offer is not None and offer.lowest_winning_bid_micros is not None:
        lies = [*lies, offer.lowest_winning_bid_micros, offer.lowest_winning_bid_micros - 1]
    for lie in lies:
        outcome, _ = outcome_of(snapshot, lie, task)
        assert utility(value, outcome) <= best
        assert outcome.evidence.offer == offer, (
            "plan and price depend on nothing that the bidder says it would pay"
        )
        if isinstance(outcome, JobAdmitted):
            assert outcome.payment_micros <= lie
            assert lie >= offer.lowest_winning_bid_micros


@settings(max_examples=examples(150), deadline=None)
@given(COMPETITORS, TASKS, MONEY)
def test_bidding_and_withdrawing_never_gains(competitors, task, amount):
    _, bench = outcome_of(market_after(competitors), amount, task)
    for outcome in bench.send(withdraw("mine")):
        if isinstance(outcome, JobWithdrawn):
            assert outcome.retained_micros >= 0
            assert outcome.returned_micros >= 0


def test_the_worked_example_of_figure_10_holds():
    # A value of 15 meets a plan that costs 10 in all: any bid above 10 wins and pays 10, any other loses.
    # Four slots of half a fast node cost 2; a vendor that asks 8 brings the expense to 10.
    bench = Bench.configured()
    bench.send(vendor("fast", 8.0, 0.0))
    snapshot = bench.cell.snapshot()
    task = {"needs_preprocessing": True}
    outcomes = {units: outcome_of(snapshot, units * UNIT, task)[0] for units in (5, 9, 10, 11, 15, 20)}
    assert {units: utility(15 * UNIT, outcome) // UNIT for units, outcome in outcomes.items()} == {
        5: 0,
        9: 0,
        10: 0,
        11: 5,
        15: 5,
        20: 5,
    }


@pytest.mark.parametrize(("payment", "gain_micros"), [("published", UNIT), ("critical", -UNIT)])
def test_published_payment_rewards_overbidding(payment, gain_micros):
    # Erratum P1: an empty cell asks no resource price, so Eq. 14 charges nothing, while F subtracts the
    # operational cost of 2. A user whose task is worth 1 loses truthfully, and gains by claiming 3.
    policy = PdftspPolicy(
        kind="pdftsp",
        payment=payment,
        money_unit_micros=UNIT,
        max_value_per_compute_micros=4 * UNIT,
        max_value_per_memory_micros=4 * UNIT,
    )
    snapshot = market_after([], zones=(zone(policy=policy),))
    truthful, _ = outcome_of(snapshot, UNIT, {})
    overbid, _ = outcome_of(snapshot, 3 * UNIT, {})
    assert utility(UNIT, truthful) == 0
    assert utility(UNIT, overbid) == gain_micros


@settings(max_examples=examples(40), deadline=None)
@given(COMPETITORS, st.integers(0, 3))
def test_the_same_ledger_gives_the_same_bytes(competitors, slot):
    def digest() -> str:
        bench = Bench.configured()
        for number, (amount, task) in enumerate(competitors):
            bench.send(bid(f"competitor{number}", amount / UNIT, **task))
        bench.send(tick(slot))
        return hashlib.blake2b(b"".join(d.canonical for d in bench.decisions)).hexdigest()

    assert digest() == digest()
