"""Changes of a running cell that meet other changes: loans, departures, and what is reported meanwhile."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from schemas.auction.settings import NoMergingPolicy
from schemas.base import Event
from schemas.cells import GpuType, Node
from schemas.changes import ZoneConfigured
from schemas.decisions import EventIgnored, JobAdmitted, NodeMoved, NodeStatusChanged
from schemas.fleet import FleetEvent
from schemas.installed import KINDS
from schemas.kind import Input
from schemas.topics import INPUTS
from streams.cell.layout import Layout
from streams.cell.rules import RULES, RuleBook
from streams.cell.state_machine import Cell
from streams.policies.auction.zone import AuctionZone
from tests.streams.cell.test_changes import (
    configured,
    kinds,
    lent,
    only,
    registered,
    retired,
    serving,
    small_zone,
    two_zones,
)
from tests.support.cells import (
    Bench,
    CheckedBench,
    bid,
    configuration,
    nodes_by_slot,
    online,
    progressed,
    started,
    tick,
    withdraw,
    zone,
)
from tests.support.plans import held_cells

SLOW = GpuType(name="slow", samples_per_s=5.0, memory_gib=6.0, power_kw=0.5)
EITHER = {"fast": 10.0, "slow": 5.0}
WHOLE: dict[str, Any] = {"units": 5_000, "work_samples": 500, "speed_samples_per_s": {"fast": 10.0}}
"""Takes all five slots that are left of a fast node."""


def node(id: str, gpu_type: str = "fast") -> Node:
    return Node(id=id, gpu_type=gpu_type, tariff="t")


class TestLentNodes:
    def test_their_owner_keeps_what_the_borrower_has_promised(self):
        bench = two_zones()
        bench.send(tick(0), online("a1"), online("y1"), lent("a1"))
        jobs = [bid(f"j{n}", zone="y", work_samples=200, speed_samples_per_s=EITHER) for n in range(3)]
        taken = {used for job in jobs for used in nodes_by_slot(only(bench.send(job), JobAdmitted)).values()}
        assert "a1" in taken
        slower = (node("a1", "slow"), node("a2"), node("b1", "slow"))
        refused = only(bench.send(configured(nodes=slower)), EventIgnored)
        assert refused.reason == "breaks_a_promise"
        assert refused.facts["zone"] == "y"

    def test_borrower_keeps_type_of_node_in_transit(self):
        bench = two_zones()
        bench.send(tick(0), bid(**WHOLE))
        (busy,) = {node for node in ("a1", "a2", "b1") if not bench.zone.free_to_leave([node])}
        for idle in {"a1", "a2", "b1"} - {busy}:
            bench.send(retired(idle))
        bench.send(registered("a9"), lent(busy))
        assert serving(bench, busy) == ("z", "leaving")
        without = ZoneConfigured(cell="c", zone=zone(id="y", gpu_types=(SLOW,), nodes=(node("y1", "slow"),)))
        refused = only(bench.send(without), EventIgnored)
        assert (refused.reason, refused.facts["node"]) == ("invalid_configuration", busy)


class TestNodesThatLeave:
    def busy(self) -> CheckedBench:
        """A zone of two nodes, both with a job that fits nowhere else."""
        bench = small_zone("a1", "a2")
        bench.send(tick(0))
        for name in ("one", "two"):
            admitted = bench.send(bid(name, **WHOLE))
            assert kinds(admitted) == [JobAdmitted]
        assert not bench.zone.free_to_leave(["a1"])
        assert not bench.zone.free_to_leave(["a2"])
        return bench

    def test_the_last_that_is_not_leaving_stays(self):
        bench = self.busy()
        bench.send(retired("a1"))
        refused = only(bench.send(retired("a2")), EventIgnored)
        assert refused.reason == "invalid_configuration"
        assert serving(bench, "a2") == ("z", "up")

    def test_configuration_may_not_empty_a_zone(self):
        bench = two_zones()
        bench.send(tick(0), lent("a2"), retired("b1"))
        refused = only(bench.send(configured(nodes=(node("a2"),))), EventIgnored)
        assert refused.reason == "invalid_configuration"

    def test_retiring_node_registered_again_stays(self):
        bench = self.busy()
        bench.send(retired("a1"))
        assert only(bench.send(registered("a1", tariff="t")), NodeStatusChanged).reason == "registered"
        assert serving(bench, "a1") == ("z", "up")
        assert only(bench.send(retired("a2")), NodeStatusChanged).status == "leaving"

    @pytest.mark.parametrize("change", [{"gpu_type": "slow"}, {"zone": "y"}])
    def test_but_only_as_what_it_is(self, change: dict[str, str]):
        bench = two_zones()
        bench.send(tick(0), bid(**WHOLE), retired("b1"))
        (busy,) = (node for node in ("a1", "a2") if not bench.zone.free_to_leave([node]))
        bench.send(tick(1), retired(busy))
        assert serving(bench, busy) == ("z", "leaving")
        assert only(bench.send(registered(busy, **change)), EventIgnored).reason == "node_already_registered"

    def test_blocked_node_leaves_when_possible(self):
        bench = self.busy()
        bench.send(retired("a1"))
        for _ in range(3):
            assert not any(isinstance(outcome, NodeMoved) for outcome in bench.send(online("a2")))
        (job,) = (job for job, plan in held_cells(bench.zone).items() if "a1" in plan.values())
        assert only(bench.send(withdraw(job)), NodeMoved).node == "a1"

    def test_blocked_departure_is_not_retried_every_event(self, monkeypatch: pytest.MonkeyPatch):
        bench, after, tried = Bench.configured(), Layout.after, []
        monkeypatch.setattr(Layout, "after", lambda *given: tried.append(given) or after(*given))
        room = bench.zone.live
        room.add(bench.cell.configuration.live_jobs_bytes + 2**20)
        bench.send(tick(0), retired("a2"))
        assert serving(bench, "a2") == ("z", "leaving"), "the snapshot has no room for the jobs without it"
        so_far = len(tried)
        bench.send(*(tick(1 + number / 10) for number in range(9)))
        assert len(tried) == so_far
        room.add(-room.total)
        assert only(bench.send(tick(2)), NodeMoved).node == "a2"

    def test_node_leaves_without_one_that_waits(self):
        longer = zone(id="y", horizon_slots=12, nodes=(node("y1"),))
        bench = Bench.configured(zones=(zone(), longer))
        bench.send(tick(0), bid(**WHOLE))
        (busy,) = (node for node in ("a1", "a2", "b1") if not bench.zone.free_to_leave([node]))
        idle = "b1" if busy == "a1" else "a1"
        bench.send(tick(1), started(busy, 1, 0), lent(busy))
        assert serving(bench, busy) == ("z", "leaving")
        layout, live = bench.cell.nodes.layout, bench.zone.live
        alone, both = (
            layout.after(moves).present.live_jobs_bytes for moves in ({idle: None}, {idle: None, busy: "y"})
        )
        assert both < alone
        live.add(alone + 2**20)
        bench.send(retired(idle), progressed(busy, 1, 100))
        assert bench.zone.free_to_leave([idle, busy]) == [idle, busy]
        assert serving(bench, idle) == ("z", "leaving"), "the snapshot has no room for the jobs without it"
        live.add(alone - live.total)
        assert only(bench.send(tick(1.5)), NodeMoved).node == idle
        assert serving(bench, busy) == ("z", "leaving")

    def test_jobs_may_have_shared_departed_nodes(self):
        fast = tuple(node(f"a{number}") for number in range(4))
        bench = CheckedBench.configured(zones=(zone(nodes=fast, policy=NoMergingPolicy(kind="ntm")),))
        bench.send(tick(0))
        for name in ("one", "two"):
            assert kinds(bench.send(bid(name, **WHOLE))) == [JobAdmitted]
        bench.send(tick(1))
        ran_on = {job: plan[1] for job, plan in held_cells(bench.zone).items()}
        for name, used in ran_on.items():
            bench.send(started(used, 1, 0, job_id=name), retired(used))
            bench.send(progressed(used, 1, 100, job_id=name))
        assert all(bench.cell.nodes.zone_of(used) is None for used in ran_on.values())
        bench.send(tick(2))
        assert len(bench.described["jobs"]) == 2


class CoolantWarm(FleetEvent):
    """A node's coolant is too warm."""

    TYPE: ClassVar[str] = "test.coolant.warm.v1"


class CooledZone(AuctionZone):
    """Records the reports about coolants in its decisions."""

    def apply(self, event: Event) -> None:
        if isinstance(event, CoolantWarm):
            facts = {"case": "warm", "node": event.node}
            self._outcomes.add(EventIgnored(reason="nothing_changes", facts=facts))
        else:
            super().apply(event)


def test_events_of_policy_about_nodes_reach_zones():
    fleet = INPUTS["fleet"]
    pdftsp = KINDS["pdftsp"]
    cooled = replace(
        pdftsp,
        zone=f"{__name__}:CooledZone",
        inputs=(*pdftsp.inputs, Input(CoolantWarm, fleet)),
    )
    rules = replace(RULES.newest, policies={**RULES.newest.policies, "pdftsp": cooled})
    bench = Bench(Cell("c", RuleBook((rules,))))
    bench.send(configuration())
    assert only(bench.send(CoolantWarm(cell="c", node="a1")), EventIgnored).facts["case"] == "warm"
    assert only(bench.send(CoolantWarm(cell="c", node="x")), EventIgnored).reason == "unknown_node"
