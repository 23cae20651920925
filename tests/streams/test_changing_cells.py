"""Whatever operators change while jobs come and run, what must hold of a cell holds, and it is restored."""

import random
from collections import Counter

import pytest

from schemas.auction.settings import EarliestFinishPolicy, NoMergingPolicy, PdftspPolicy, TitanPolicy
from schemas.base import HOURS_PER_DAY, Event
from schemas.cells import GpuType, Node, Tariff
from schemas.changes import (
    CellChange,
    NodeCordoned,
    NodeLent,
    NodeRegistered,
    NodeRetired,
    NodeReturned,
    NodeUncordoned,
    ZoneConfigured,
)
from schemas.decisions import EventIgnored, JobRefunded, NodeMoved, ZoneAccepted
from schemas.jobs import JobSubmitted
from schemas.kind import PolicySettings
from streams.cell.state_machine import Cell
from tests.support.cells import UNIT, CheckedBench, offline, online, tick, zone
from tests.support.examples import seeds
from tests.support.histories import history

ORDERS = (NodeRegistered, NodeRetired, NodeLent, NodeReturned, NodeCordoned, NodeUncordoned)
BIDS = 120
CHANGES_PER_EVENT = 0.25
NODES = ("a1", "a2", "b1", "y1", "n1", "n2")
PDFTSP = PdftspPolicy(
    kind="pdftsp",
    money_unit_micros=UNIT,
    max_value_per_compute_micros=4 * UNIT,
    max_value_per_memory_micros=4 * UNIT,
)
POLICIES: dict[str, PolicySettings] = {
    "pdftsp": PDFTSP,
    "eft": EarliestFinishPolicy(kind="eft"),
    "ntm": NoMergingPolicy(kind="ntm"),
    "titan": TitanPolicy(kind="titan"),
}


def change(rng: random.Random, bench: CheckedBench) -> Event:
    """Return an event that an operator, or an executor that starts, may send now."""
    node = rng.choice(NODES)
    kind = rng.choice((*ORDERS, None))
    if rng.random() < 0.3:
        return online(node)
    if kind is NodeRegistered:
        gpu_type = "slow" if node == "b1" else "fast"
        return NodeRegistered(cell="c", node=node, zone="z", gpu_type=gpu_type, tariff="t")
    if kind is NodeLent:
        return NodeLent(cell="c", node=node, zone=rng.choice("zy"))
    if kind is None:
        return configured(rng, bench)
    return kind(cell="c", node=node)


def configured(rng: random.Random, bench: CheckedBench) -> ZoneConfigured:
    """Zone "z" with some of its nodes, some of another type, and another horizon, speed, memory or tariff."""
    present = next(held for held in bench.cell.configuration.zones if held.id == "z")
    kept = tuple(node for node in present.nodes if rng.random() < 0.9) or present.nodes
    nodes = tuple(
        node.model_copy(update={"gpu_type": rng.choice(["fast", "slow"])}) if rng.random() < 0.1 else node
        for node in kept
    )
    fast, slow = zone().gpu_types
    grown = GpuType(
        name="fast", samples_per_s=rng.choice([8.0, 10.0, 12.0]), memory_gib=rng.choice([9.0, 10.0, 12.0])
    )
    tariff = Tariff(name="t", micros_per_kwh=(rng.choice([180, 360, 720]) * UNIT,) * HOURS_PER_DAY)
    changed = present.model_copy(
        update={
            "nodes": nodes,
            "horizon_slots": rng.choice([5, 6, 9, 12]),
            "gpu_types": (rng.choice([fast, grown]), slow),
        }
    )
    return ZoneConfigured(cell="c", zone=changed, tariffs=rng.choice([(), (tariff,)]))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", seeds(4))
def test_what_must_hold_holds_whatever_is_changed(policy: str, seed: int) -> None:
    rng = random.Random(f"{policy}/{seed}")
    beside = zone(id="y", nodes=(Node(id="y1", gpu_type="fast", tariff="t"),))
    bench = CheckedBench.configured(zones=(zone(policy=POLICIES[policy]), beside))
    coming = history(rng, bids=BIDS)
    seen = Counter[type]()
    event = next(coming)
    while True:
        if isinstance(event, JobSubmitted) and rng.random() < 0.3:
            event = event.model_copy(update={"zone": "y"})
        outcomes = bench.send(event)
        while rng.random() < CHANGES_PER_EVENT:
            changed = change(rng, bench)
            answers = bench.send(changed)
            assert answers or not isinstance(changed, CellChange), changed
            # What else a change leads to, it leads to without breaking a promise.
            assert not any(isinstance(answer, JobRefunded) for answer in answers), answers
            outcomes += answers
        seen.update(type(outcome) for outcome in outcomes)
        if rng.random() < 0.1:
            restored = Cell.restore(bench.cell.snapshot())
            assert restored.packed() == bench.cell.packed()
            bench.cell = restored
        try:
            event = coming.send(outcomes)
        except StopIteration:
            break
    assert min(seen[kind] for kind in (NodeMoved, ZoneAccepted, EventIgnored)) > 2
    bench.send(tick(10_000), *map(offline, bench.cell.nodes.layout.zone_of), tick(10_001), tick(10_002))
    assert not bench.cell.jobs.live, "every job ends"
