"""Work that is spread evenly over the slots that it takes, in place of as much as fits into each."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.auction.evidence import JobReplanned
from schemas.auction.settings import AuctionPolicy
from schemas.changes import ZoneConfigured
from schemas.decisions import JobAdmitted, JobCompleted, ZoneAccepted
from solvers.auction.market.demand import Demand
from solvers.auction.market.fleet import Fleet
from tests.streams.test_truthfulness import COMPETITORS, MONEY, TASKS, check_never_beaten, market_after
from tests.support.cells import (
    UNIT,
    CheckedBench,
    bid,
    configuration,
    finished,
    nodes_by_slot,
    progressed,
    started,
    tick,
    workload,
    zone,
)
from tests.support.examples import examples

EVEN = AuctionPolicy()


def even_zone(**changes):
    return zone(policy=EVEN, **changes)


@pytest.fixture
def bench() -> CheckedBench:
    return CheckedBench.configured(zones=(even_zone(),))


def demand_of(work: int, **changes) -> Demand:
    cell = configuration(zones=(even_zone(),))
    return Demand.of(workload(**changes), work, cell.zones[0], Fleet.of(cell, cell.zones[0]), cell.slot_s)


@given(work=st.integers(1, 10_000), speed=st.integers(1, 100))
def test_even_quotas_need_no_more_slots(work, speed):
    # A slot has ten seconds.
    (quota, slow) = demand_of(work, speed_samples_per_s={"fast": speed / 10.0}).samples.tolist()
    slots = math.ceil(work / speed)
    assert slow == 0
    assert quota <= speed
    assert math.ceil(work / quota) == slots
    assert work <= slots * quota < work + slots


@given(work=st.integers(1, 1_000), speed=st.integers(2, 100), less=st.integers(1, 99))
def test_claim_of_lower_speed_requests_same_room(work, speed, less):
    slower = max(speed - less, 1)
    quotas = [demand_of(work, speed_samples_per_s={"fast": s / 10.0}).samples[0] for s in (speed, slower)]
    assert (quotas[0] == quotas[1]) == (math.ceil(work / speed) == math.ceil(work / slower))


def test_job_trains_and_pays_in_even_parts(bench):
    (admitted,) = bench.send(bid(work_samples=150, speed_samples_per_s={"fast": 10.0}))
    # Two slots of three quarters of a node, and an eighth of what they cost to run for the room.
    assert admitted.payment_micros == 3 * UNIT // 2 * 9 // 8
    done = 0
    for slot, node in nodes_by_slot(admitted).items():
        (assigned,) = [o for o in bench.send(tick(slot)) if hasattr(o, "runs")]
        assert assigned.runs[0].quota_samples == 75
        bench.send(started(node, slot, done))
        done += 75
        outcomes = bench.send(finished(node, slot, done) if done == 150 else progressed(node, slot, done))
    assert isinstance(outcomes[0], JobCompleted)


def test_undone_work_is_spread_evenly_again(bench):
    (admitted,) = bench.send(bid(work_samples=150, speed_samples_per_s={"fast": 10.0}))
    node = nodes_by_slot(admitted)[0]
    bench.send(tick(0), started(node, 0, 0))
    (replanned,) = bench.send(progressed(node, 0, 60))
    assert isinstance(replanned, JobReplanned)
    # 90 samples in one slot are more than the 75 of each of the first two.
    assert replanned.plan.samples == 90
    (accepted,) = bench.send(ZoneConfigured(cell="c", zone=even_zone(horizon_slots=7)))
    assert isinstance(accepted, ZoneAccepted)


@settings(max_examples=examples(100), deadline=None)
@given(COMPETITORS, TASKS, MONEY, st.lists(MONEY, min_size=1, max_size=4))
def test_bidding_the_true_value_is_never_beaten(competitors, task, value, lies):
    check_never_beaten(market_after(competitors, zones=(even_zone(),)), task, value, lies)


def test_task_of_two_speeds_may_need_extra_slot():
    # Fast nodes are taken in the first of two slots: 50 samples there and 100 in the second at full quotas,
    # 50 and 75 at even ones.
    speeds = {"fast": 10.0, "slow": 5.0}
    admitted = {}
    for policy in (zone().policy, EVEN):
        bench = CheckedBench.configured(zones=(zone(policy=policy, horizon_slots=2),))
        for other in ("k", "l"):
            bench.send(bid(other, deadline_s=1_010.0, work_samples=100, speed_samples_per_s={"fast": 10.0}))
        (outcome,) = bench.send(bid(deadline_s=1_020.0, work_samples=150, speed_samples_per_s=speeds))
        admitted[policy.EVEN_QUOTAS] = isinstance(outcome, JobAdmitted)
    assert admitted == {False: True, True: False}
