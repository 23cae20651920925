"""A service that stops, dies or is flooded harms no other, as the log shows.

The quick forms run with all tests; `make disturbances` runs the long ones.
"""

import os
import random
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from schemas.auction.bids import BidTerms, DeadlineTerms, VendorQuoted
from schemas.base import Event
from schemas.clock import ClockTicked
from schemas.decisions import JobAdmitted, JobCompleted, JobRejected, NodeStatusChanged
from schemas.fleet import NodeHeartbeat, RunStarted
from schemas.jobs import JobQuoteRequested, JobSubmitted, JobWithdrawalRequested
from tests.integration.deployment import until
from tests.integration.house import CELL, NODES, ZONE, House, admitted, house, stopped

LONG = os.environ.get("MILLRACE_DISTURBANCES") == "long"
WORKER_STOPS_S = (30.0, 300.0) if LONG else (12.0,)
BROKER_STOP_S = 30.0 if LONG else 12.0
FLOOD_BIDS = 60_000 if LONG else 6_000
KILLS = 20 if LONG else 1
JOBS, WORK_SAMPLES = (4, 300) if LONG else (2, 150)
PLANS_END_S = 700.0
"""A plan takes the cheapest slots of the horizon of ten minutes, and so does one that replaces it."""
SEED = 7
NODE_TIMEOUT_S = 8.0
NOTICE_S = 3.0
"""Delay between the moment in which a node has been silent for too long and the decision about it."""

pytestmark = [pytest.mark.alone, pytest.mark.timeout(1_800 if LONG else 300)]


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(tmp_path_factory.mktemp("house")) as living:
        yield living


def disturbed(living: House, for_s: float) -> tuple[list[str], int]:
    """Jobs under way, with time to be finished after a disturbance, and where the decisions stand."""
    return living.keep_busy(JOBS, WORK_SAMPLES, deadline_in_s=for_s + 240.0), len(living.decisions())


def assert_unharmed(living: House, jobs: list[str], since: int) -> None:
    """Assert that the jobs are completed, none was refunded, and no node was taken for lost."""
    living.await_over(jobs, timeout_s=PLANS_END_S)
    assert living.unjust(since) == []
    completed = {outcome.job_id for outcome in living.outcomes(JobCompleted)}
    assert {award.job_id for award in admitted(living, jobs)} == set(jobs)
    assert set(jobs) <= completed
    assert living.proven()


@pytest.mark.drill
@pytest.mark.parametrize("stop_s", WORKER_STOPS_S)
def test_a_worker_that_stands_still(living: House, stop_s: float) -> None:
    jobs, since = disturbed(living, stop_s)
    with stopped(living.deployment.worker.pid):
        time.sleep(stop_s)
    assert_unharmed(living, jobs, since)


@pytest.mark.skipif(not LONG, reason="it belongs to `make disturbances`")
def test_a_clock_that_stands_still(living: House) -> None:
    jobs, since = disturbed(living, 30.0)
    with stopped(living.deployment.clock.pid):
        time.sleep(30.0)
    assert_unharmed(living, jobs, since)


@pytest.mark.drill
def test_a_broker_that_stands_still(living: House) -> None:
    jobs, since = disturbed(living, BROKER_STOP_S)
    with stopped(living.broker.pid):
        time.sleep(BROKER_STOP_S)
    assert_unharmed(living, jobs, since)


def test_a_flood_of_bids_by_one_user(living: House) -> None:
    jobs, since = disturbed(living, 120.0)
    flood = [living.submit("flooder", 300, 300.0, bid_micros=1) for _ in range(FLOOD_BIDS)]
    honest = living.submit("bob", 96, 240.0)
    living.flush()
    sent_s = time.monotonic()
    until(lambda: bool(decided(living, honest)), "the honest bid decided", 60.0)
    delay_s = time.monotonic() - sent_s
    still_waiting = FLOOD_BIDS - len(decided(living, *flood))
    assert still_waiting > FLOOD_BIDS / 4, f"decided after {delay_s:.1f} s, ahead of most of the flood"
    assert_unharmed(living, [*jobs, honest], since)
    until(lambda: len(decided(living, *flood)) == FLOOD_BIDS, "every bid of the flood decided", 600.0)


def quote_requests(living: House, number: int) -> Event:
    return JobQuoteRequested(
        cell=CELL,
        quote_id=f"flood-{number}",
        user="flooder",
        zone=ZONE,
        workload=living.workload(300),
        terms=DeadlineTerms(deadline_s=time.time() + 300.0),
    )


def withdrawals(_living: House, number: int) -> Event:
    return JobWithdrawalRequested(cell=CELL, job_id=f"flooder-{number}", user="flooder")


def vendor_quotes(_living: House, number: int) -> Event:
    return VendorQuoted(
        cell=CELL,
        vendor="couriers",
        fixed_price_micros=number,
        price_per_thousand_samples_micros=10,
        fixed_delay_s=0.0,
        delay_per_thousand_samples_s=1.0,
    )


def ticks(_living: House, _number: int) -> Event:
    return ClockTicked(cell=CELL, time_s=time.time())


def heartbeats(_living: House, _number: int) -> Event:
    return NodeHeartbeat(cell=CELL, node=NODES[0], base_model="tiny", runners=("lora",))


def bids_under_many_names(living: House, number: int) -> Event:
    user = f"name-{number}"
    return JobSubmitted(
        cell=CELL,
        job_id=user,
        user=user,
        zone=ZONE,
        workload=living.workload(300),
        terms=BidTerms(bid_micros=1, deadline_s=time.time() + 300.0),
    )


def reports_of_unknown_nodes(_living: House, number: int) -> Event:
    return RunStarted(cell=CELL, node=f"node-{number}", run_id="0/job", job_id="job", samples_done=0)


FLOODS = (
    bids_under_many_names,
    quote_requests,
    withdrawals,
    vendor_quotes,
    ticks,
    heartbeats,
    reports_of_unknown_nodes,
)


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.skipif(not LONG, reason="it belongs to `make disturbances`")
def test_a_flood_of_another_kind(living: House, flood: Callable[[House, int], Event]) -> None:
    jobs, since = disturbed(living, 120.0)
    for number in range(FLOOD_BIDS):
        living.publish(flood(living, number))
    honest = living.submit("bob", 96, 240.0)
    living.flush()
    until(lambda: bool(decided(living, honest)), "the honest bid decided", 120.0)
    assert_unharmed(living, [*jobs, honest], since)


REFUSED: dict[str, tuple[bytes, list[tuple[str, bytes]]]] = {
    "zeros": (b"{}", [("junk", b"\0" * 7_800_000)]),
    "no UTF-8": (b"{}", [("junk", b"\xff\xfe" * 3_900_000)]),
    "a long name": (b"{}", [("\u202e" * 2_500_000, b"x")]),
    "many headers": (b"{}", [("h", b"\xff")] * 1_000_000),
    "many elements": (b'{"cell":"%s","x":[%s0]}' % (CELL.encode(), b"{}," * 300_000), []),
}


def test_a_flood_of_records_that_are_refused(living: House) -> None:
    producer = Producer(
        {"bootstrap.servers": living.broker.bootstrap_servers, "message.max.bytes": 8 * 2**20, "linger.ms": 0}
    )
    since = len(living.decisions())
    for value, junk in [*REFUSED.values()] * (10 if LONG else 4):
        headers = [("ce_id", b"x"), ("ce_source", b"x"), ("ce_type", JobSubmitted.TYPE.encode()), *junk]
        producer.produce(living.target.topic("jobs"), value, CELL.encode(), headers=headers)
        producer.flush()
    honest = living.submit("bob", 96, 240.0)
    living.flush()
    until(lambda: bool(decided(living, honest)), "the honest bid decided", 10.0)
    living.await_over([honest], timeout_s=60.0)
    assert living.unjust(since) == []


def decided(living: House, *jobs: str) -> set[str]:
    """Return the jobs whose bids have been decided."""
    return {o.job_id for o in living.outcomes(JobAdmitted | JobRejected)} & set(jobs)


@pytest.mark.drill
def test_a_storm_of_kills_of_the_worker(living: House) -> None:
    chance = random.Random(SEED)
    jobs, since = disturbed(living, 60.0 * KILLS)
    for _ in range(KILLS):
        before = len(living.decisions())
        os.kill(living.deployment.worker.pid or 0, 9)
        until(lambda before=before: len(living.decisions()) > before + 2, "decisions again", 90.0)
        jobs += [living.submit("ada", 200, 60.0 * KILLS + 240.0)]
        living.flush()
        time.sleep(chance.uniform(0.5, 4.0))
    assert_unharmed(living, jobs, since)


def test_stopped_node_is_detected_within_timeout(living: House) -> None:
    since = len(living.decisions())
    with stopped(living.deployment.executors[CELL, "node-a40"].pid):
        stopped_s = time.monotonic()
        changes = until(
            lambda: [
                decision.outcome
                for decision in living.decisions()[since:]
                if isinstance(decision.outcome, NodeStatusChanged)
            ],
            "the node found silent",
        )
        found_after_s = time.monotonic() - stopped_s
    assert [(change.node, change.status, change.reason) for change in changes] == [
        ("node-a40", "down", "silent")
    ]
    assert found_after_s < NODE_TIMEOUT_S + NOTICE_S
    until(lambda: back(living, since), "the node back")


def back(living: House, since: int) -> bool:
    """Whether the node that was lost came back."""
    outcomes = [decision.outcome for decision in living.decisions()[since:]]
    return any(isinstance(o, NodeStatusChanged) and o.status == "up" for o in outcomes)
