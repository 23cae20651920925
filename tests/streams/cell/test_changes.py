"""Nodes join, leave and move between zones, and zones are reconfigured, with jobs on them."""

import pytest

from schemas.auction.evidence import JobReplanned, ZonePriced
from schemas.auction.settings import EarliestFinishPolicy, PdftspPolicy, TitanPolicy
from schemas.base import HOURS_PER_DAY
from schemas.cells import GpuType, Node, Tariff
from schemas.changes import (
    NodeCordoned,
    NodeLent,
    NodeRegistered,
    NodeRetired,
    NodeReturned,
    NodeUncordoned,
    ZoneConfigured,
)
from schemas.decisions import (
    EventIgnored,
    JobAdmitted,
    JobCompleted,
    JobRejected,
    NodeMoved,
    NodeStatusChanged,
    ZoneAccepted,
)
from schemas.lora_commands import SlotAssigned
from schemas.solves import SolveRequested
from tests.support.cells import (
    EPOCH_S,
    SLOT_S,
    UNIT,
    CheckedBench,
    bid,
    configuration,
    finished,
    node_seen,
    nodes_by_slot,
    offline,
    online,
    progressed,
    silent,
    started,
    tick,
    withdraw,
    zone,
)

FAST_NODES = (Node(id="a1", gpu_type="fast", tariff="t"), Node(id="a2", gpu_type="fast", tariff="t"))


def registered(node: str, zone: str = "z", gpu_type: str = "fast", tariff: str = "t") -> NodeRegistered:
    return NodeRegistered(cell="c", node=node, zone=zone, gpu_type=gpu_type, tariff=tariff)


def retired(node: str) -> NodeRetired:
    return NodeRetired(cell="c", node=node)


def lent(node: str, zone: str = "y") -> NodeLent:
    return NodeLent(cell="c", node=node, zone=zone)


def returned(node: str) -> NodeReturned:
    return NodeReturned(cell="c", node=node)


def cordoned(node: str) -> NodeCordoned:
    return NodeCordoned(cell="c", node=node)


def uncordoned(node: str) -> NodeUncordoned:
    return NodeUncordoned(cell="c", node=node)


def configured(tariffs: tuple[Tariff, ...] = (), **changes) -> ZoneConfigured:
    """Zone "z" with changes."""
    return ZoneConfigured(cell="c", zone=zone(**changes), tariffs=tariffs)


def two_zones(base_model: str = "tiny", **changes) -> CheckedBench:
    """Zone "z" of three nodes, and zone "y" of node y1, which may have another base model."""
    other = zone(
        id="y", base_model=base_model, nodes=(Node(id="y1", gpu_type="fast", tariff="t"),), **changes
    )
    return CheckedBench.configured(zones=(zone(), other))


def only(outcomes, kind):
    """The only outcome of a type."""
    (found,) = (outcome for outcome in outcomes if isinstance(outcome, kind))
    return found


def kinds(outcomes):
    return [type(outcome) for outcome in outcomes]


def small_zone(*nodes: str) -> CheckedBench:
    """Zone "z" of these fast nodes alone."""
    return CheckedBench.configured(
        zones=(zone(nodes=tuple(Node(id=node, gpu_type="fast", tariff="t") for node in nodes)),)
    )


def serving(bench: CheckedBench, node: str) -> tuple[str | None, str | None]:
    """Zone and status of a node."""
    zone = bench.cell.nodes.zone_of(node)
    return zone, None if zone is None else bench.cell.nodes.status_of(node)


class TestNodesThatJoin:
    def test_registered_node_is_planned_on_after_report(self):
        bench = small_zone("a1")
        bench.send(tick(0), silent("a1"))
        moved, status = bench.send(registered("a9"))
        assert moved == NodeMoved(node="a9", from_zone=None, to_zone="z", reason="registered")
        assert (status.status, status.reason) == ("down", "awaited")
        assert isinstance(only(bench.send(bid("early")), JobRejected), JobRejected)
        up = only(bench.send(online("a9")), NodeStatusChanged)
        assert (up.node, up.status, up.reason) == ("a9", "up", "online")
        admitted = only(bench.send(bid("late")), JobAdmitted)
        assert set(nodes_by_slot(admitted).values()) == {"a9"}

    def test_heartbeats_suffice_for_node_already_online(self):
        bench = small_zone("a1")
        ignored = only(bench.send(online("a9")), EventIgnored)
        assert ignored.reason == "unknown_node"
        bench.send(registered("a9"))
        assert bench.cell.nodes.awaits(node_seen("a9"))
        bench.send(node_seen("a9"))
        assert serving(bench, "a9") == ("z", "up")

    def test_node_with_other_base_model_is_unused(self):
        bench = small_zone("a1")
        bench.send(registered("a9"))
        assert only(bench.send(online("a9", base_model="large")), EventIgnored).reason == "wrong_base_model"
        assert serving(bench, "a9") == ("z", "down")
        assert not bench.cell.nodes.awaits(node_seen("a9").model_copy(update={"base_model": "large"}))

    def test_prices_of_new_node_open_like_others(self):
        bench = small_zone("a1")
        bench.send(tick(0), bid("one"), bid("two"), registered("a9"), online("a9"))
        market = bench.zone.auctioneer.market
        assert market.compute_price[:, bench.zone.fleet.row_of["a9"]].tolist() == [0.0] * 6
        assert market.compute_price[:, bench.zone.fleet.row_of["a1"]].max() > 0

    @pytest.mark.parametrize(
        ("event", "reason"),
        [
            (registered("a1"), "node_already_registered"),
            (registered("a9", zone="x"), "unknown_zone"),
            (registered("a9", gpu_type="huge"), "invalid_configuration"),
            (registered("a9", tariff="night"), "invalid_configuration"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_what_cannot_be_registered(self, event, reason):
        bench = CheckedBench.configured()
        before = bench.zone.state()
        assert only(bench.send(event), EventIgnored).reason == reason
        assert bench.zone.state() == before


class TestNodesThatRetire:
    def test_an_idle_node_leaves_at_once(self):
        bench = CheckedBench.configured()
        bench.send(tick(0), online("a2"))
        status, moved = bench.send(retired("a2"))
        assert (status.node, status.status, status.reason) == ("a2", "leaving", "retired")
        assert moved == NodeMoved(node="a2", from_zone="z", to_zone=None, reason="retired")
        assert only(bench.send(online("a2")), EventIgnored).reason == "unknown_node"
        assert [node.id for node in bench.cell.configuration.zones[0].nodes] == ["a1", "b1"]

    def test_what_is_planned_on_it_is_planned_elsewhere(self):
        bench = small_zone("a1", "a2")
        bench.send(tick(0))
        node = set(nodes_by_slot(only(bench.send(bid()), JobAdmitted)).values()).pop()
        (other,) = {"a1", "a2"} - {node}
        status, replanned, moved = bench.send(retired(node))
        assert isinstance(status, NodeStatusChanged)
        assert isinstance(replanned, JobReplanned)
        assert (replanned.reason, replanned.extra_operational_micros) == ("node_leaving", 0)
        assert set(nodes_by_slot(replanned).values()) == {other}
        assert isinstance(moved, NodeMoved)

    def test_its_present_run_goes_on_to_its_end(self):
        bench = small_zone("a1", "a2")
        bench.send(tick(0))
        node = nodes_by_slot(only(bench.send(bid()), JobAdmitted))[1]
        bench.send(tick(1), started(node, 1, 0))
        assert kinds(bench.send(retired(node))) == [NodeStatusChanged, JobReplanned]
        assert serving(bench, node) == ("z", "leaving")
        assert kinds(bench.send(progressed(node, 1, 50))) == [NodeMoved], "the job's checkpoint is kept"
        assert serving(bench, node) == (None, None)

    def test_unreported_run_holds_node_until_report_timeout(self):
        bench = small_zone("a1", "a2")
        bench.send(tick(0))
        node = nodes_by_slot(only(bench.send(bid()), JobAdmitted))[1]
        bench.send(tick(1), started(node, 1, 0), retired(node), tick(2))
        assert serving(bench, node) == ("z", "leaving")
        assert isinstance(only(bench.send(tick(3)), NodeMoved), NodeMoved)

    def test_job_without_alternative_holds_leaving_node(self):
        bench = small_zone("a1", "a2")
        bench.send(tick(0), silent("a2"))
        job = nodes_by_slot(only(bench.send(bid()), JobAdmitted))
        assert set(job.values()) == {"a1"}
        bench.send(registered("a3"))
        assert kinds(bench.send(retired("a1"))) == [NodeStatusChanged]
        done = 0
        for slot in job:
            outcomes = bench.send(tick(slot))
            assert only(outcomes, SlotAssigned).node == "a1"
            bench.send(started("a1", slot, done))
            done += 50
            outcomes = bench.send(progressed("a1", slot, done) if done < 200 else finished("a1", slot))
        assert kinds(outcomes) == [JobCompleted, NodeMoved]

    def test_each_slot_retries_to_move_jobs(self):
        bench = small_zone("a1", "a2")
        bench.send(tick(0), silent("a2"))
        only(bench.send(bid()), JobAdmitted)
        bench.send(retired("a1"), node_seen("a2"))
        assert serving(bench, "a1") == ("z", "leaving")
        outcomes = bench.send(tick(0.5), tick(1))
        replanned = only(outcomes, JobReplanned)
        assert (replanned.reason, set(nodes_by_slot(replanned).values())) == ("node_leaving", {"a2"})
        assert only(bench.send(started("a1", 1, 0), progressed("a1", 1, 50)), NodeMoved).node == "a1"

    def test_lost_node_leaves_at_once_and_jobs_remain(self):
        bench = small_zone("a1", "a2")
        bench.send(tick(0))
        node = nodes_by_slot(only(bench.send(bid()), JobAdmitted))[1]
        bench.send(tick(1), started(node, 1, 0), offline(node))
        assert kinds(bench.send(retired(node)))[-1] is NodeMoved
        assert bench.send(started(node, 1, 0))[0].reason == "unknown_node"
        assert max(part["slot"] for part in bench.job("j")["plan"]) >= 2

    def test_the_last_node_of_a_zone_stays(self):
        bench = small_zone("a1")
        assert only(bench.send(retired("a1")), EventIgnored).reason == "invalid_configuration"

    @pytest.mark.parametrize("event", [retired("x9"), lent("x9"), returned("x9"), cordoned("x9")])
    def test_an_unknown_node_is_named(self, event):
        ignored = only(CheckedBench.configured().send(event), EventIgnored)
        assert (ignored.reason, ignored.facts) == ("unknown_node", {"node": "x9"})


class TestNodesOnLoan:
    def test_lent_node_serves_borrower_and_returns(self):
        bench = two_zones()
        bench.send(tick(0), online("a2"))
        leaving, moved = bench.send(lent("a2"))
        assert (leaving.zone, leaving.status, leaving.reason) == ("z", "leaving", "lent")
        assert moved == NodeMoved(node="a2", from_zone="z", to_zone="y", reason="lent")
        assert serving(bench, "a2") == ("y", "up")
        assert "a2" not in bench.zone.fleet.row_of
        bids = [bid(f"y{number}", zone="y", work_samples=250) for number in range(2)]
        admitted = [only(bench.send(one), JobAdmitted) for one in bids]
        assert {node for one in admitted for node in nodes_by_slot(one).values()} == {"y1", "a2"}
        bench.send(withdraw("y0"), withdraw("y1"))
        assert only(bench.send(returned("a2")), NodeMoved).to_zone == "z"
        assert serving(bench, "a2") == ("z", "up")

    def test_node_of_other_model_is_awaited_both_ways(self):
        bench = two_zones(base_model="large")
        bench.send(tick(0), online("a2"))
        *_, awaited = bench.send(lent("a2"))
        assert (awaited.zone, awaited.status, awaited.reason) == ("y", "down", "awaited")
        assert not bench.cell.nodes.awaits(node_seen("a2"))
        bench.send(online("a2", base_model="large"))
        assert serving(bench, "a2") == ("y", "up")
        bench.send(returned("a2"))
        assert serving(bench, "a2") == ("z", "down")

    def test_lost_node_is_lost_in_new_zone(self):
        bench = two_zones()
        bench.send(tick(0), silent("a2"), lent("a2"))
        assert serving(bench, "a2") == ("y", "down")
        assert set(nodes_by_slot(only(bench.send(bid(zone="y")), JobAdmitted)).values()) == {"y1"}

    def test_loan_before_its_start_is_cancelled(self):
        bench = two_zones()
        bench.send(tick(0), silent("a1"), silent("b1"))
        node = nodes_by_slot(only(bench.send(bid()), JobAdmitted))[1]
        assert kinds(bench.send(lent(node))) == [NodeStatusChanged]
        kept = only(bench.send(returned(node)), NodeStatusChanged)
        assert (kept.zone, kept.status, kept.reason) == ("z", "up", "returned")
        assert bench.send(lent(node), returned(node))[-1].status == "up"

    def test_reports_of_the_old_zone_count_no_more(self):
        bench = two_zones()
        bench.send(tick(0))
        node = nodes_by_slot(only(bench.send(bid()), JobAdmitted))[1]
        bench.send(tick(1), started(node, 1, 0), progressed(node, 1, 50), lent(node))
        assert serving(bench, node) == ("y", "up")
        assert only(bench.send(progressed(node, 1, 60)), EventIgnored).reason == "stale_report"

    @pytest.mark.parametrize(
        ("event", "reason"),
        [
            (lent("a1", "x"), "unknown_zone"),
            (lent("a1", "z"), "nothing_changes"),
            (lent("a2"), "node_already_lent"),
            (returned("a1"), "node_not_lent"),
            (lent("y1", "z"), "invalid_configuration"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_what_cannot_be_lent_or_returned(self, event, reason):
        bench = two_zones()
        bench.send(lent("a2"))
        if reason == "invalid_configuration":
            bench.send(returned("a2"))
        assert only(bench.send(event), EventIgnored).reason == reason

    def test_a_zone_keeps_its_last_node(self):
        ignored = only(two_zones().send(lent("y1", "z")), EventIgnored)
        assert ignored.facts == {"case": "no_node_left", "zone": "y"}

    def test_a_lent_node_retires_from_where_it_is(self):
        bench = two_zones()
        bench.send(lent("a2"))
        moved = only(bench.send(retired("a2")), NodeMoved)
        assert (moved.from_zone, moved.to_zone) == ("y", None)
        assert "a2" not in bench.cell.nodes.layout.owner_of

    def test_a_node_that_is_leaving_is_not_lent(self):
        bench = two_zones()
        bench.send(tick(0), silent("a1"), silent("b1"))
        node = nodes_by_slot(only(bench.send(bid()), JobAdmitted))[1]
        bench.send(retired(node))
        assert only(bench.send(lent(node)), EventIgnored).reason == "node_leaving"
        assert only(bench.send(retired(node)), EventIgnored).reason == "nothing_changes"


class TestCordonedNodes:
    def test_nothing_new_is_planned_there_and_plans_stay(self):
        bench = small_zone("a1", "a2")
        bench.send(tick(0))
        plan = nodes_by_slot(only(bench.send(bid("one")), JobAdmitted))
        node = plan[1]
        (other,) = {"a1", "a2"} - {node}
        status = only(bench.send(cordoned(node)), NodeStatusChanged)
        assert (status.status, status.reason) == ("cordoned", "cordoned")
        second = only(bench.send(bid("two")), JobAdmitted)
        assert set(nodes_by_slot(second).values()) == {other}
        assert second.evidence.offer.room.on_closed_nodes == 5
        assert node in {order.node for order in bench.send(tick(1)) if isinstance(order, SlotAssigned)}

    def test_uncordoned_node_is_planned_on(self):
        bench = small_zone("a1")
        bench.send(tick(0), cordoned("a1"))
        assert only(bench.send(bid("one")), JobRejected).reason == "no_room_before_deadline"
        bench.send(uncordoned("a1"))
        only(bench.send(bid("two")), JobAdmitted)

    def test_cordoned_node_returns_cordoned_after_loss(self):
        bench = small_zone("a1", "a2")
        bench.send(tick(0), cordoned("a1"), online("a1"), silent("a1"))
        assert only(bench.send(online("a1")), NodeStatusChanged).status == "cordoned"
        assert set(nodes_by_slot(only(bench.send(bid()), JobAdmitted)).values()) == {"a2"}

    def test_it_stays_cordoned_on_loan(self):
        bench = two_zones()
        bench.send(tick(0), cordoned("a2"), lent("a2"))
        assert serving(bench, "a2") == ("y", "cordoned")
        assert set(nodes_by_slot(only(bench.send(bid(zone="y")), JobAdmitted)).values()) == {"y1"}

    @pytest.mark.parametrize("events", [(uncordoned("a1"),), (cordoned("a1"), cordoned("a1"))])
    def test_change_without_effect_is_ignored(self, events):
        assert CheckedBench.configured().send(*events)[-1].reason == "nothing_changes"


class TestZonesConfiguredAgain:
    def test_prices_rise_by_new_settings(self):
        bench = small_zone("a1")
        steeper = PdftspPolicy(
            kind="pdftsp",
            money_unit_micros=UNIT,
            max_value_per_compute_micros=8 * UNIT,
            max_value_per_memory_micros=8 * UNIT,
        )
        bench.send(tick(0), bid("one"))
        before = bench.zone.auctioneer.market.compute_price.max()
        accepted = only(bench.send(configured(nodes=FAST_NODES[:1], policy=steeper)), ZoneAccepted)
        assert accepted == ZoneAccepted(zone="z", reason="changed")
        market = bench.zone.auctioneer.market
        assert market.compute_price.max() == before, "what was sold keeps its price"
        only(bench.send(bid("two", units=200)), JobAdmitted)
        # Eq. 7: lambda (1 + s) + alpha b-bar s, with half a node's compute and a quarter of its memory.
        density = (200 * UNIT - 4 * UNIT // 2) / (4 * 0.75)
        assert market.compute_price.max() == pytest.approx(before * 1.5 + 8 * density * 0.5)

    def test_a_longer_horizon_takes_later_deadlines(self):
        bench = small_zone("a1")
        bench.send(tick(0))
        late = EPOCH_S + 12 * SLOT_S
        assert only(bench.send(bid("one", deadline_s=late, work_samples=500)), JobRejected)
        bench.send(configured(nodes=FAST_NODES[:1], horizon_slots=12))
        only(bench.send(bid("two", deadline_s=late, work_samples=500)), JobAdmitted)
        assert len(bench.zone.auctioneer.market.compute_price) == 12

    def test_a_shorter_horizon_must_hold_the_plans(self):
        bench = small_zone("a1")
        bench.send(tick(0))
        plan = nodes_by_slot(only(bench.send(bid(work_samples=250)), JobAdmitted))
        ignored = only(
            bench.send(configured(nodes=FAST_NODES[:1], horizon_slots=max(plan) - 1)), EventIgnored
        )
        assert ignored.reason == "breaks_a_promise"
        assert (ignored.facts["case"], ignored.facts["slot"]) == ("beyond_the_horizon", max(plan))
        only(bench.send(configured(nodes=FAST_NODES[:1], horizon_slots=max(plan))), ZoneAccepted)

    def test_higher_tariff_applies_only_to_new_bids(self):
        bench = small_zone("a1")
        bench.send(tick(0))
        first = only(bench.send(bid("one")), JobAdmitted)
        night = Tariff(name="t", micros_per_kwh=(720 * UNIT,) * HOURS_PER_DAY)
        bench.send(configured(tariffs=(night,), nodes=FAST_NODES[:1]))
        second = only(bench.send(bid("two", units=90)), JobAdmitted)
        cost = first.evidence.offer.price.operational_micros
        assert second.evidence.offer.price.operational_micros == 2 * cost
        assert second.evidence.certificate.difference.replanned_micros == -cost, "the provider's loss"
        withdrawn = bench.send(withdraw("one"))[0]
        assert withdrawn.returned_micros <= first.payment_micros

    @pytest.mark.parametrize(
        ("changes", "case"),
        [
            (
                {"gpu_types": (GpuType(name="fast", samples_per_s=4.0, memory_gib=10.0, power_kw=1.0),)},
                "unjudgeable",
            ),
            (
                {"gpu_types": (GpuType(name="fast", samples_per_s=10.0, memory_gib=3.0, power_kw=1.0),)},
                "unjudgeable",
            ),
            ({"base_model": "large"}, "other_base_model"),
            ({"policy": EarliestFinishPolicy(kind="eft")}, "other_policy"),
        ],
        ids=["slower", "smaller", "another base model", "another policy"],
    )
    def test_what_a_job_was_promised_is_kept(self, changes, case):
        fast = (GpuType(name="fast", samples_per_s=10.0, memory_gib=10.0, power_kw=1.0),)
        bench = CheckedBench.configured(zones=(zone(nodes=FAST_NODES[:1], gpu_types=fast),))
        bench.send(tick(0), bid(speed_samples_per_s={"fast": 5.0}))
        before = bench.zone.state()
        ignored = only(
            bench.send(configured(**{"nodes": FAST_NODES[:1], "gpu_types": fast, **changes})), EventIgnored
        )
        assert ignored.reason == "breaks_a_promise"
        assert ignored.facts["case"] == case
        assert bench.zone.state() == before

    def test_omitted_nodes_retire_and_new_ones_join(self):
        bench = CheckedBench.configured()
        bench.send(tick(0))
        fresh = Node(id="a9", gpu_type="fast", tariff="t")
        outcomes = bench.send(configured(nodes=(*FAST_NODES, fresh)))
        moves = [(move.node, move.reason) for move in outcomes if isinstance(move, NodeMoved)]
        assert moves == [("a9", "registered"), ("b1", "retired")]
        assert serving(bench, "a9") == ("z", "down")

    def test_retiring_node_listed_again_is_kept(self):
        bench = small_zone("a1", "a2")
        bench.send(tick(0), silent("a2"), bid(), retired("a1"))
        assert serving(bench, "a1") == ("z", "leaving")
        outcomes = bench.send(configured(nodes=FAST_NODES))
        assert kinds(outcomes) == [ZoneAccepted, NodeStatusChanged]
        assert serving(bench, "a1") == ("z", "up")

    def test_base_model_may_change_without_jobs(self):
        bench = small_zone("a1")
        bench.send(tick(0), online("a1"))
        accepted, awaited = bench.send(configured(nodes=FAST_NODES[:1], base_model="large"))
        assert isinstance(accepted, ZoneAccepted)
        assert (awaited.status, awaited.reason) == ("down", "awaited")
        bench.send(online("a1", base_model="large"))
        assert serving(bench, "a1") == ("z", "up")

    def test_a_zone_is_added_to_a_running_cell(self):
        bench = small_zone("a1")
        bench.send(tick(3))
        fresh = zone(id="y", nodes=(Node(id="y1", gpu_type="fast", tariff="t"),))
        outcomes = bench.send(ZoneConfigured(cell="c", zone=fresh))
        assert outcomes[0] == ZoneAccepted(zone="y", reason="added")
        assert only(outcomes, ZonePriced).slot == 3
        bench.send(online("y1"))
        admitted = only(bench.send(bid(zone="y", deadline_s=EPOCH_S + 9 * SLOT_S)), JobAdmitted)
        assert min(nodes_by_slot(admitted)) == 4

    def test_the_same_configuration_again_changes_nothing(self):
        bench = CheckedBench.configured()
        assert only(bench.send(configured()), EventIgnored).reason == "nothing_changes"

    def test_a_node_of_another_zone_is_refused(self):
        bench = two_zones()
        taken = (*FAST_NODES, Node(id="y1", gpu_type="fast", tariff="t"))
        ignored = only(bench.send(configured(nodes=taken)), EventIgnored)
        assert ignored.reason == "invalid_configuration"
        assert ignored.facts == {"case": "given_twice", "name": "y1"}

    def test_bids_waiting_for_solver_use_changed_zone(self):
        titan = TitanPolicy(kind="titan")
        fast, slow = zone().gpu_types
        bench = CheckedBench.configured(zones=(zone(policy=titan),))
        bench.send(tick(0), bid("stays"), bid("goes", speed_samples_per_s={"slow": 5.0}))
        rejected = only(
            bench.send(configured(policy=titan, nodes=FAST_NODES, gpu_types=(fast, slow)), retired("b1")),
            JobRejected,
        )
        assert (rejected.job_id, rejected.reason) == ("goes", "larger_than_a_node")
        asked = only(bench.send(tick(0.6)), SolveRequested)
        assert [offered.job_id for offered in asked.problem.bids] == ["stays"]


def test_cell_resumes_from_snapshot_during_changes():
    bench = two_zones()
    bench.send(tick(0), online("a1"), silent("b1"), registered("a9"), cordoned("a1"), lent("a2"))
    bench.send(bid("one", zone="y"), bid("two", zone="y", work_samples=300), returned("a2"))
    twin = type(bench)(type(bench.cell).restore(bench.cell.snapshot()), list(bench.ledger))
    assert twin.cell.packed() == bench.cell.packed()
    rest = [tick(1), online("a9"), uncordoned("a1"), tick(2), bid("three"), tick(3), configuration(), tick(4)]
    assert [bench.send(event) for event in rest] == [twin.send(event) for event in rest]
    assert twin.cell.packed() == bench.cell.packed()
