"""A cell keeps no more live jobs than a snapshot has room for, and one user's flood costs others little."""

import random
import string
from typing import Any

import msgpack
import pytest
from pydantic import ValidationError

from bench.spine.cells import bid as usual_bid
from bench.spine.cells import configuration as usual_configuration
from schemas.auction.batches import SolvedPlan
from schemas.auction.bids import VendorQuoted
from schemas.auction.settings import MAX_BATCH_NODE_SLOTS, AuctionPolicy, TitanPolicy
from schemas.cells import (
    LEAST_LIVE_JOBS_BYTES,
    MAX_SNAPSHOT_BYTES,
    Borrower,
    CellConfigured,
    GpuType,
    Lending,
    Node,
)
from schemas.changes import NodeCordoned
from schemas.clock import ClockTicked
from schemas.decisions import JobAdmitted, JobQuoted, JobRefunded, JobRejected
from schemas.inference import CapacityOffered, CapacityReclaimed, InferenceLoadReported
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset, LoraHyperparameters
from schemas.questions import encode_posed
from schemas.solves import SolveRequested
from schemas.topics import topics
from solvers.auction.posted.prices import PostedPrices
from streams.cell.live_bytes import LiveBytes, job_bytes
from streams.cell.state_machine import Cell
from streams.policies.auction.batch_admission import MOST_BIDS
from streams.policies.auction.planned_job import NODE_SLOT_BYTES, ZONE_BYTES
from tests.support.cells import (
    EPOCH_S,
    UNIT,
    Bench,
    ask,
    bid,
    configuration,
    node_seen,
    nodes_by_slot,
    offline,
    online,
    solved,
    tick,
    withdraw,
    zone,
)
from tests.support.invariants import check_live_bytes
from tests.support.loans import lender

LONGEST_ID = 128
LARGEST_EVENT_BYTES = 2**20
NODES = tuple(Node(id=f"n{n:d}".ljust(LONGEST_ID, "x"), gpu_type="fast", tariff="t") for n in range(512))
LARGEST: dict[str, Any] = {
    "duplicate_window_events": 127_500,
    "vendors": tuple(f"v{number}".ljust(LONGEST_ID, "x") for number in range(1_000)),
}
"""With `NODES` for 1,024 slots, a cell that leaves little to live jobs."""


def largest_zone(**changes: Any) -> Any:
    return zone(nodes=NODES, horizon_slots=1_024, **changes)


def letters(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_letters + string.digits, k=LONGEST_ID))


def largest(rng: random.Random) -> dict[str, Any]:
    """A task of some 10 KB that no compression makes smaller, and that any node has room for."""
    return {
        "hyperparameters": LoraHyperparameters(target_modules=tuple(letters(rng) for _ in range(64))),
        "dataset": Dataset(
            path="".join(chr(rng.randrange(0x10000, 0x11000)) for _ in range(512)), samples=10**12
        ),
        "memory_gib": 2.0**-10,
        "work_samples": 3,
        "speed_samples_per_s": {"fast": 0.1, "slow": 0.1},
    }


def largest_bid(rng: random.Random, user: str | None = None) -> Any:
    return bid(letters(rng), user=user or letters(rng), **largest(rng))


def whole_bytes(event: JobSubmitted) -> int:
    """Return the bytes that its job is counted for without its plan."""
    return job_bytes(event.workload, event.terms) + ZONE_BYTES


@pytest.mark.slow
def test_largest_state_of_large_cell_fits_snapshot() -> None:
    rng = random.Random(1)
    bench = Bench.configured(zones=(largest_zone(),), **LARGEST)
    configuration = bench.cell.configuration
    assert configuration is not None
    assert LEAST_LIVE_JOBS_BYTES <= configuration.live_jobs_bytes < 1.1 * LEAST_LIVE_JOBS_BYTES
    for node in NODES[256:]:
        bench.send(online(node.id, "other"))
    for name in configuration.vendors:
        bench.send(
            VendorQuoted(
                cell="c",
                vendor=name,
                fixed_price_micros=10**15,
                price_per_thousand_samples_micros=10**15,
                fixed_delay_s=1.2345678901234567e-300,
                delay_per_thousand_samples_s=1.2345678901234567e-300,
            )
        )
    while isinstance((outcome := bench.send(largest_bid(rng)))[0], JobAdmitted):
        pass
    (rejected,) = outcome
    assert isinstance(rejected, JobRejected)
    assert (rejected.reason, rejected.facts["case"]) == ("cell_full", "live_jobs")
    check_live_bytes(bench.cell)
    bench.send(*(NodeCordoned(cell="c", node=node.id) for node in NODES))
    seven_eighths = 7 * configuration.live_jobs_bytes // 8
    assert bench.zone.live.total > seven_eighths - 2 * whole_bytes(largest_bid(rng))
    for window in (bench.cell._configured._recent, bench.cell.jobs._won, bench.cell.jobs._lost):
        for number in range(132_000):
            window.note(f"writer{number}", "id")
    unfilled = LARGEST_EVENT_BYTES - len(configuration.model_dump_json())
    grown = configuration.live_jobs_bytes // 8
    packed = len(bench.cell.packed()) + unfilled + grown
    assert packed > 0.95 * MAX_SNAPSHOT_BYTES
    # The rest is for what compression and Kafka may add, see tests/integration/test_largest_snapshot.py.
    assert packed <= MAX_SNAPSHOT_BYTES - 2**17


@pytest.fixture
def bench() -> Bench:
    """A large cell in which a few hundred of the largest bids fit."""
    return Bench.configured(zones=(largest_zone(),), **LARGEST)


def fill(bench: Bench, rng: random.Random) -> list[str]:
    """Bid until the cell is full; the ids of the jobs admitted."""
    admitted = []
    while isinstance((outcome := bench.send(largest_bid(rng, "u")))[0], JobAdmitted):
        admitted.append(outcome[0].job_id)
    return admitted


def test_full_cell_refuses_until_jobs_end(bench: Bench) -> None:
    rng = random.Random(2)
    jobs = fill(bench, rng)
    task = largest(rng)
    rejected, quoted = bench.send(bid("late", **task), ask(**task))
    assert isinstance(rejected, JobRejected)
    assert isinstance(quoted, JobQuoted)
    assert rejected.reason == quoted.reason == "cell_full"
    assert rejected.evidence.offer == quoted.evidence.offer
    (cheap,) = bench.send(bid("cheap", units=0.0, **task))
    assert cheap.reason == "price_not_below_bid", "it would have lost in an empty cell too"
    bench.send(withdraw(jobs[0]), withdraw(jobs[1]))
    quoted, admitted = bench.send(ask(**task), bid("later", **task))
    assert quoted.reason == "plan_found"
    assert isinstance(admitted, JobAdmitted)


def test_bid_refused_by_full_cell_counts_in_bound(bench: Bench) -> None:
    rng = random.Random(3)
    fill(bench, rng)
    before = bench.zone.auctioneer.prices.bound_micros
    (rejected,) = bench.send(largest_bid(rng))
    assert rejected.reason == "cell_full"
    assert bench.zone.auctioneer.prices.bound_micros > before + 40 * UNIT


def test_a_restored_cell_counts_the_same(bench: Bench) -> None:
    rng = random.Random(4)
    fill(bench, rng)
    restored = Cell.restore(bench.cell.snapshot())
    check_live_bytes(restored)
    assert restored.zones["z"].live.total == bench.zone.live.total


def test_replanned_plan_has_limited_extra_room() -> None:
    bench = Bench.configured()
    (admitted,) = bench.send(tick(0), bid())[-1:]
    live, configuration = bench.zone.live, bench.cell.configuration
    assert configuration is not None
    others = configuration.live_jobs_bytes * 15 // 16 - live.total
    live.add(others)
    assert bench.send(bid("k"))[0].reason == "cell_full"
    node = nodes_by_slot(admitted)[1]
    assert "millrace.job.replanned.v1" in {
        outcome.TYPE for outcome in bench.send(node_seen(node), offline(node))
    }
    live.add(configuration.live_jobs_bytes - live.total)
    node = bench.job("j")["plan"][0]["node"]
    refunded = next(outcome for outcome in bench.send(offline(node)) if isinstance(outcome, JobRefunded))
    assert (refunded.reason, refunded.refund_micros) == ("node_lost", admitted.payment_micros)
    assert refunded.facts["case"] == "plan_too_long"
    assert refunded.facts["held_bytes"] + refunded.facts["more_bytes"] > refunded.facts["limit_bytes"]
    market = bench.zone.auctioneer.market
    assert (market.free_samples[:, 2] == 50).all(), "its new plan is given up too"


@pytest.fixture
def waiting() -> Bench:
    """Besides the zone that decides in batches, another one leaves little of the cell to live jobs."""
    batches = zone(nodes=NODES, horizon_slots=256, policy=TitanPolicy(kind="titan"))
    others = tuple(node.model_copy(update={"id": node.id[::-1]}) for node in NODES)
    beside = zone(id="y", nodes=others, horizon_slots=704)
    bench = Bench.configured(zones=(batches, beside), **{**LARGEST, "duplicate_window_events": 123_500})
    bench.send(tick(0))
    return bench


def test_waiting_bids_of_user_are_limited(waiting: Bench) -> None:
    rng = random.Random(5)
    kept = 0
    while not (outcome := waiting.send(largest_bid(rng, "flood"))):
        kept += 1
    assert (outcome[0].reason, kept > 10) == ("cell_full", True)
    task = largest(rng)
    (quoted,) = waiting.send(ask(**task).model_copy(update={"user": "flood"}))
    assert quoted.reason == "cell_full"
    assert waiting.send(ask(**task))[0].reason == "plan_found"
    assert waiting.send(largest_bid(rng, "other")) == [], "it waits"
    (withdrawn,) = waiting.send(withdraw(next(iter(waiting.zone.admission.describe()["jobs"])), "flood"))
    assert withdrawn.returned_micros == 0
    assert waiting.send(largest_bid(rng, "flood")) == []
    check_live_bytes(waiting.cell)


def test_waiting_bids_leave_half_to_jobs(waiting: Bench) -> None:
    rng = random.Random(6)
    while not waiting.send(largest_bid(rng)):
        pass
    assert waiting.cell.configuration is not None
    limit = waiting.cell.configuration.live_jobs_bytes // 2
    assert limit - 20_000 < waiting.zone.live.total <= limit
    slot = 0
    while waiting.zone.live.total:
        requested = next(o for o in waiting.send(tick(slot + 0.6)) if isinstance(o, SolveRequested))
        answered = waiting.send(solved(requested, status="feasible"))
        assert len(answered) == len(requested.problem.bids) <= MOST_BIDS
        slot += 1


def test_largest_problem_fits_its_record() -> None:
    """As many nodes with long names as a configuration holds, and counts of as many digits as can be."""
    names = [f"n{number}".ljust(LONGEST_ID, "x") for number in range(6_000)]
    types = ("fast", "slow", "third", "fourth")
    largest_types = tuple(
        GpuType(name=name, samples_per_s=1e9, memory_gib=1e6, power_kw=0.1234567890123456) for name in types
    )
    batches = zone(
        nodes=tuple(Node(id=name, gpu_type=types[i % 4], tariff="t") for i, name in enumerate(names)),
        gpu_types=largest_types,
        horizon_slots=MAX_BATCH_NODE_SLOTS // len(names),
        policy=TitanPolicy(kind="titan"),
    )
    bench = Bench.configured(zones=(batches,), slot_s=86_400.0)
    assert len(bench.cell.configuration.model_dump_json()) > 0.9 * LARGEST_EVENT_BYTES
    rng = random.Random(9)
    task: dict[str, Any] = {
        "work_samples": 10**12,
        "memory_gib": 1_000.0,
        "speed_samples_per_s": dict.fromkeys(types, 1000000000.0),
        "deadline_s": EPOCH_S + 21 * 86_400.0,
    }
    bench.send(ClockTicked(cell="c", time_s=EPOCH_S))
    waiting = 0
    while not (outcome := bench.send(bid(letters(rng), units=10.0**9, user=letters(rng), **task))):
        waiting += 1
    assert (outcome[0].reason, waiting > 2_100) == ("cell_full", True)
    (requested,) = bench.send(ClockTicked(cell="c", time_s=EPOCH_S + 60_000.0))
    assert len(requested.problem.bids) == MOST_BIDS
    (decisions,) = (topic for topic in topics() if topic.name.endswith(".decisions"))
    (problems,) = (topic for topic in topics() if topic.name.endswith(".solves.requested"))
    assert len(requested.model_dump_json()) < 0.5 * decisions.max_message_bytes
    posed = encode_posed(bench.decisions[-1], requested)
    assert len(posed) < 0.95 * problems.max_message_bytes


def test_solved_bid_in_full_cell_gets_reason(waiting: Bench) -> None:
    task = largest(random.Random(7))
    waiting.send(bid("j", deadline_s=EPOCH_S + 60.0, **task))
    (requested,) = waiting.send(tick(0.6))
    assert waiting.cell.configuration is not None
    waiting.zone.live.add(waiting.cell.configuration.live_jobs_bytes * 7 // 8 - waiting.zone.live.total)
    plan = SolvedPlan(job_id="j", node_slots=tuple((slot, NODES[0].id) for slot in range(1, 4)))
    (rejected,) = waiting.send(solved(requested, plan))
    assert rejected.reason == "cell_full"


def test_ten_thousand_jobs_of_usual_size_fit() -> None:
    live = LiveBytes(usual_configuration(200).live_jobs_bytes)
    rng = random.Random(8)
    for number in range(10_000):
        count = whole_bytes(usual_bid(rng, f"job{number}", now_s=0.0)) + 10 * NODE_SLOT_BYTES
        assert live.refuse_job(count) is None
        live.add(count)


def test_loan_fits_counted_bytes() -> None:
    def lending(servers: int) -> CellConfigured:
        names = [f"s{number}".ljust(LONGEST_ID, "x") for number in range(servers)]
        terms = Lending(headroom=0.0, notice_s=40.0, borrowers=(Borrower(zone=longest_zone),))
        lent = lender(
            id="inf".ljust(LONGEST_ID, "x"),
            nodes=tuple(Node(id=name, gpu_type="fast", tariff="t") for name in names),
            lending=terms,
        )
        return configuration(zones=(zone(id=longest_zone), lent))

    def used_bytes() -> int:
        state = msgpack.unpackb(bench.cell.packed())
        return len(msgpack.packb([state["nodes"], state["loans"]]))

    longest_zone = "z".ljust(LONGEST_ID, "x")
    counted = lending(2).live_jobs_bytes - lending(3).live_jobs_bytes
    bench = Bench()
    bench.send(lending(2), tick(0))
    own, lent = bench.cell.configuration.zones
    (server, _), said = [node.id for node in lent.nodes], {"cell": "c", "zone": lent.id}
    before = used_bytes()
    bench.send(
        InferenceLoadReported(**said, time_s=EPOCH_S, load=0.0),
        CapacityOffered(**said, offer_id="o", servers=(server,)),
        online(server),
        *(offline(node.id) for node in own.nodes),
        bid(zone=own.id, work_samples=150),
        tick(1),
        CapacityReclaimed(**said, reclaim_id="r".ljust(LONGEST_ID, "x"), servers=1, due_s=EPOCH_S + 50.0),
        InferenceLoadReported(**said, time_s=EPOCH_S, load=0.0, serving=(server,)),
    )
    assert bench.cell.nodes.loan_status(server) == "draining"
    lost_bytes = len(own.nodes) * (LONGEST_ID + 3)
    assert 0 < used_bytes() - before - lost_bytes <= counted


def test_self_pricing_zone_fits_counted_bytes() -> None:
    """A node of its own class, bids of more densities than are distinguished, and two horizons open to
    them."""
    horizon_slots = 300
    one = zone(policy=AuctionPolicy(), nodes=NODES[:1], horizon_slots=horizon_slots)
    bench = Bench.configured(zones=(one,))
    for slot in (0, horizon_slots - 1):
        bench.send(tick(slot))
        bench.send(bid(f"far{slot}", 10.0, deadline_s=EPOCH_S + 10.0 * (slot + horizon_slots)))
    posted = bench.zone.auctioneer.prices
    assert isinstance(posted, PostedPrices)
    for step in range(-900, 900):
        net_micros = 10**15 + step
        units = 1.0123456789 * 10**6 * 1.03**step
        posted.curve.sell(net_micros / units, units, 100)
        posted.curve.lose(net_micros / units, units)
        posted._certificate.count_bid(net_micros, units, units)
    packed = len(msgpack.packb(posted.state()))
    assert 0.5 * one.policy.state_bytes(one) < packed < one.policy.state_bytes(one)


def test_self_pricing_zones_without_room_are_refused() -> None:
    zones = tuple(
        zone(id=f"z{n}", policy=AuctionPolicy(), nodes=NODES[n : n + 1], horizon_slots=10_000)
        for n in range(52)
    )
    with pytest.raises(ValidationError, match=r"leave -\d+ bytes of a snapshot to live jobs"):
        configuration(zones=zones)
