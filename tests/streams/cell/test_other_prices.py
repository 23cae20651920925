"""Zones whose prices become of another kind, or go on over other nodes and windows: what was promised is kept
and the certificate stays one."""

import random

import pytest

from schemas.auction.settings import AuctionPolicy
from schemas.base import Event
from schemas.cells import Node
from schemas.changes import NodeRegistered, NodeRetired, ZoneConfigured
from schemas.decisions import EventIgnored, JobAdmitted, JobWithdrawn, ZoneAccepted
from streams.cell.state_machine import Cell
from tests.support.cells import Bench, CheckedBench, bid, online, tick, vendor, withdraw, zone
from tests.support.examples import seeds
from tests.support.histories import history

DEFAULT = AuctionPolicy()
POLICIES = {"default": DEFAULT, "declared": zone().policy}
ROUND_TRIPS = [
    ("default", "declared", "default"),
    ("declared", "default", "declared"),
    ("default", "declared", "default", "declared", "default"),
]


def configured(policy: str, **changes) -> ZoneConfigured:
    return ZoneConfigured(cell="c", zone=zone(policy=POLICIES[policy], **changes))


def accept(bench: Bench, event: Event) -> None:
    assert any(isinstance(outcome, ZoneAccepted) for outcome in bench.send(event))


def bench_under(policy: str) -> CheckedBench:
    bench = CheckedBench.configured(zones=(zone(policy=POLICIES[policy]),))
    bench.send(vendor("slow", 0.2, 20.0), vendor("fast", 1.1, 0.0), tick(0))
    return bench


def certificate(bench: Bench) -> tuple[int, int]:
    """Return the zone's planned welfare and its bound."""
    auctioneer = bench.zone.auctioneer
    return auctioneer.welfare.planned_micros, auctioneer.prices.bound_micros


@pytest.mark.slow
@pytest.mark.parametrize("policies", ROUND_TRIPS, ids="-".join)
@pytest.mark.parametrize("seed", seeds(3))
def test_history_continues_under_other_prices(policies, seed):
    rng = random.Random(f"kinds/{seed}")
    bench = bench_under(policies[0])
    coming = history(rng, 40 * len(policies), late_share=0.1)
    event, changes = next(coming), 0
    while event is not None:
        outcomes = bench.send(event)
        if rng.random() < 0.02 and changes + 1 < len(policies):
            changes += 1
            bound = certificate(bench)[1]
            accept(bench, configured(policies[changes]))
            assert certificate(bench)[1] == bound, "what was bid before is bounded as it was"
        try:
            event = coming.send(outcomes)
        except StopIteration:
            event = None
    assert changes == len(policies) - 1
    twin = Bench()
    twin.send(*[entry.envelope.event for entry in bench.ledger])
    assert twin.cell.packed() == bench.cell.packed()
    assert Cell.restore(bench.cell.snapshot()).packed() == bench.cell.packed()


@pytest.mark.parametrize("policies", ROUND_TRIPS[:2], ids="-".join)
def test_withdrawal_under_other_prices_leaves_bound(policies):
    """In the very slot, too, in which the kind of prices changes twice."""
    bench = bench_under(policies[0])
    for number in range(3):
        bench.send(bid(f"first{number}", 30.0 + number))
    accept(bench, configured(policies[1]))
    for number in range(3):
        bench.send(bid(f"second{number}", 30.0 + number))
    accept(bench, configured(policies[2]))
    bench.send(bid("third", 40.0))
    for job_id in ("first0", "first1", "second0", "second1"):
        outcomes = bench.send(withdraw(job_id))
        withdrawn = any(isinstance(outcome, JobWithdrawn) for outcome in outcomes)
        planned, bound = certificate(bench)
        assert planned <= bound
        assert withdrawn or any(isinstance(outcome, EventIgnored) for outcome in outcomes)


def test_new_kind_of_prices_starts_empty():
    bench = bench_under("default")
    for number in range(30):
        bench.send(bid(f"j{number}", 20.0, work_samples=100))
    found = bench.zone.auctioneer.prices.levels
    assert found.base > 0
    accept(bench, configured("default", horizon_slots=8))
    assert bench.zone.auctioneer.prices.levels.base == found.base
    accept(bench, configured("declared", horizon_slots=8))
    assert bench.zone.auctioneer.market.compute_price.max() == 0.0
    accept(bench, configured("default", horizon_slots=8))
    assert bench.zone.auctioneer.prices.levels.base == 0.0


NODES = (
    Node(id="a1", gpu_type="fast", tariff="t"),
    Node(id="a2", gpu_type="fast", tariff="t"),
    Node(id="b1", gpu_type="slow", tariff="t"),
)


def other_nodes(rng: random.Random, count: int) -> Event:
    """A node that comes or goes, or the zone with other speeds, memory and horizon."""
    fast, slow = zone().gpu_types
    match rng.randrange(4):
        case 0:
            return NodeRegistered(
                cell="c", node=f"n{count}", zone="z", gpu_type=rng.choice(["fast", "slow"]), tariff="t"
            )
        case 1:
            return NodeRetired(cell="c", node=rng.choice(["a1", "a2", "b1", f"n{count - 1}"]))
        case _:
            return ZoneConfigured(
                cell="c",
                zone=zone(
                    policy=DEFAULT,
                    nodes=NODES,
                    horizon_slots=rng.choice([3, 6, 9, 14]),
                    gpu_types=(
                        fast.model_copy(
                            update={
                                "samples_per_s": rng.choice([10.0, 15.0]),
                                "memory_gib": rng.choice([10.0, 16.0]),
                            }
                        ),
                        slow,
                    ),
                ),
            )


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(8))
def test_history_continues_over_nodes_and_horizons(seed):
    rng = random.Random(f"nodes/{seed}")
    bench = bench_under("default")
    coming = history(rng, 120, bids_per_slot=6, late_share=0.1)
    event, changed, count = next(coming), 0, 0
    while event is not None:
        outcomes = bench.send(event)
        if rng.random() < 0.1:
            count += 1
            change = other_nodes(rng, count)
            changed += not any(isinstance(outcome, EventIgnored) for outcome in bench.send(change))
            if isinstance(change, NodeRegistered):
                bench.send(online(change.node))
        if rng.random() < 0.05:
            bench.cell = Cell.restore(bench.cell.snapshot())
        try:
            event = coming.send(outcomes)
        except StopIteration:
            event = None
    assert changed > 5
    twin = Bench()
    twin.send(*[entry.envelope.event for entry in bench.ledger])
    assert twin.cell.packed() == bench.cell.packed()


def test_room_beyond_shorter_horizon_counts_later():
    """Bids could use nine slots; nodes come while only three are planned; then nine are planned again."""
    bench = CheckedBench.configured(zones=(zone(policy=DEFAULT, nodes=NODES[:1], horizon_slots=9),))
    whole = {"work_samples": 900, "speed_samples_per_s": {"fast": 10.0}, "deadline_s": 1_000.0 + 100.0}
    bench.send(tick(0), bid("early", 10.0, **whole))
    bench.send(withdraw("early"))
    accept(bench, ZoneConfigured(cell="c", zone=zone(policy=DEFAULT, nodes=NODES[:1], horizon_slots=3)))
    for number in range(3):
        bench.send(NodeRegistered(cell="c", node=f"n{number}", zone="z", gpu_type="fast", tariff="t"))
        bench.send(online(f"n{number}"))
    nodes = (NODES[0], *(Node(id=f"n{number}", gpu_type="fast", tariff="t") for number in range(3)))
    accept(bench, ZoneConfigured(cell="c", zone=zone(policy=DEFAULT, nodes=nodes, horizon_slots=9)))
    admitted = 0
    for number in range(6):
        # The last fourth of so small a zone is kept for bids that are higher than the others.
        outcomes = bench.send(bid(f"late{number}", 1_000.0 if number < 3 else 1_500.0, **whole))
        admitted += any(isinstance(outcome, JobAdmitted) for outcome in outcomes)
        planned, bound = certificate(bench)
        assert planned <= bound
    assert admitted == 4
    bench.send(tick(1))
    planned, bound = certificate(bench)
    assert planned <= bound < 1.4 * planned, "all room is taken at two densities, and the best price says so"
