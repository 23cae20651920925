"""Placements of a service: made of the profile, moved as popularity drifts, kept over a loss of ranks."""

import msgpack
import pytest

from schemas.changes import ZoneConfigured
from schemas.decisions import EventIgnored, JobCompleted
from schemas.experts.commands import ExpertsPlaced
from schemas.experts.outcomes import PlacementDecided
from schemas.experts.reports import LayerRouting
from schemas.fleet import NodeSilent
from solvers.experts.drift import DriftRule
from solvers.experts.placement import DeviceGroup
from streams.policies.experts import popularity
from streams.policies.experts.popularity import MAX_TOKENS, Popularity, rule_of, state_bytes
from tests.streams.experts.test_zone import Script, assigned, kinds, released
from tests.support.moe import (
    CELL,
    EVEN,
    SKEWED,
    TURNED,
    commands,
    finished,
    gone,
    moe_zone,
    online,
    profiled,
    routed,
    serving,
    training,
)
from tests.support.room import limit_room


class Served(Script):
    """A service of four ranks on two nodes, with two layers of eight experts."""

    def __init__(self, **policy):
        super().__init__(**policy)
        self.leader, self.other = self.start("a", serving(4))

    def profile(self):
        return self.send(profiled(self.leader, SKEWED, EVEN))

    def decided(self, outcomes):
        return [outcome for outcome in outcomes if isinstance(outcome, PlacementDecided)]


def test_profile_gives_all_members_first_placement():
    script = Served()
    decision, *placed = script.profile()
    assert (decision.reason, decision.revision) == ("initial", 1)
    assert [layer.placement.layer for layer in decision.layers] == [0, 1]
    skewed, even = decision.layers
    assert skewed.replicas[0] == 4, "with 80 % of the tokens, on all devices"
    assert skewed.popularity[0] == 0.8
    assert skewed.load < 1.1 < skewed.load_before
    assert set(even.replicas) == {1}
    assert [(command.node, command.revision) for command in placed] == [("n0", 1), ("n1", 1)]
    assert all(isinstance(command, ExpertsPlaced) for command in placed)
    assert placed[0].layers == placed[1].layers == tuple(layer.placement for layer in decision.layers)


def test_lasting_shift_moves_experts_of_its_layers():
    script = Served()
    script.profile()
    assert script.send(routed(script.leader, SKEWED, EVEN, revision=1)) == []
    assert script.send(routed(script.leader, TURNED, EVEN, revision=1)) == [], "not lasting yet"
    decision, *placed = script.send(routed(script.leader, TURNED, EVEN, revision=1))
    assert (decision.reason, decision.revision) == ("popularity_shifted", 2)
    (layer,) = decision.layers
    assert layer.placement.layer == 0
    assert layer.reports_in_a_row == 2
    assert layer.reported_tokens == sum(TURNED)
    assert layer.replicas[7] > 1
    assert len(placed) == 2


def test_noise_changes_nothing():
    script = Served()
    script.profile()
    noisy = (7_900, 550, 450, 500, 210, 110, 90, 190)
    for _ in range(20):
        assert script.send(routed(script.leader, noisy, EVEN, revision=1)) == []


def test_a_layer_cools_down_after_a_change():
    script = Served(cool_down_s=100.0)
    script.profile()
    for _ in range(5):
        assert script.send(routed(script.leader, TURNED, EVEN)) == []
    script.pass_time(101.0)
    (decision, *_) = script.send(routed(script.leader, TURNED, EVEN))
    assert decision.reason == "popularity_shifted"


def test_first_report_replaces_missing_profile():
    script = Script()
    leader, _ = script.start("a", serving(4, profile_batches=0))
    decision, *_ = script.send(routed(leader, SKEWED))
    assert (decision.reason, decision.revision) == ("initial", 1)


def test_nothing_is_placed_before_profile_ends():
    script = Served()
    assert script.send(routed(script.leader, SKEWED, EVEN)) == []
    assert script.decided(script.profile())


def test_service_with_fewer_ranks_starts_at_present_popularity():
    script = Served()
    script.profile()
    script.send(routed(script.leader, TURNED, EVEN, revision=1, samples_done=80))
    outcomes = script.send(NodeSilent(cell=CELL, node="n1", silent_s=60.0))
    script.send(gone(released(outcomes)[0], 90))
    script.send(online("n1"))
    change, decision, first, second = script.pass_time()
    assert change.reason == "resumed"
    assert (decision.reason, decision.revision) == ("devices_changed", 2)
    assert [layer.placement.layer for layer in decision.layers] == [0], "the other is as it was"
    assert (first.revision, first.resume_samples) == (2, 90)
    assert [layer.layer for layer in first.placement] == [0, 1]
    assert first.placement == second.placement
    assert first.placement[0] == decision.layers[0].placement
    script.leader = first
    assert script.decided(script.profile()) == [], "its profile is a report like others"


def test_training_reports_place_nothing():
    script = Script()
    (leader,) = script.start("a", training())
    assert script.send(routed(leader, SKEWED, samples_done=320)) == []
    (ignored,) = script.send(profiled(leader, SKEWED))
    assert ignored.facts["case"] == "job_trains"
    outcomes = script.send(online("n0"))
    assert assigned([*outcomes, *script.pass_time()])[0].resume_samples == 320


def test_other_settings_hold_from_the_next_report_on():
    script = Served()
    script.profile()
    assert script.send(routed(script.leader, TURNED, EVEN)) == []
    script.send(ZoneConfigured(cell=CELL, zone=moe_zone(lasting_reports=3)))
    assert script.send(routed(script.leader, TURNED, EVEN)) == []
    assert script.decided(script.send(routed(script.leader, TURNED, EVEN)))


@pytest.mark.parametrize(
    ("report", "facts"),
    [
        (lambda leader: routed(leader, SKEWED), {"case": "other_shape", "layers": 1, "experts": 8}),
        (lambda leader: routed(leader, (1, 2), (3, 4)), {"case": "other_shape", "layers": 2, "experts": 2}),
        (
            lambda leader: routed(leader, SKEWED, EVEN, revision=9),
            {"case": "unknown_revision", "revision": 9, "newest_revision": 1},
        ),
        (lambda leader: profiled(leader, SKEWED, EVEN), {"case": "profiled_before", "generation": 1}),
    ],
    ids=["layers", "experts", "revision", "profile"],
)
def test_mismatched_report_changes_nothing(report, facts):
    script = Served()
    script.profile()
    (ignored,) = script.send(report(script.leader))
    assert isinstance(ignored, EventIgnored)
    assert ignored.reason == "unusable_report"
    assert facts.items() <= ignored.facts.items()


def test_only_the_leader_reports_routing():
    script = Served()
    (ignored,) = script.send(profiled(script.other, SKEWED, EVEN))
    assert ignored.reason == "unusable_report"


def test_report_of_ended_generation_changes_nothing():
    script = Served()
    script.profile()
    script.send(finished(script.leader))
    for report in (routed(script.leader, TURNED, EVEN), profiled(script.leader, TURNED, EVEN)):
        assert script.send(report)[0].reason == "stale_report"


@pytest.mark.parametrize(
    ("counts", "case"),
    [([(1,) * 17], "too_many_experts"), ([(1,) * 8] * 129, "too_many_slots")],
    ids=["experts", "layers"],
)
def test_unplaceable_experts_stay_and_service_continues(counts, case):
    script = Script()
    leader, other = script.start(
        "a", serving(4) if len(counts) == 1 else serving(4, most_experts_per_device=32)
    )
    (ignored,) = script.send(profiled(leader, *counts))
    assert ignored.reason == "unusable_report"
    assert ignored.facts["case"] == case
    script.send(finished(other))
    assert kinds(script.send(finished(leader))) == [JobCompleted]


def test_popularity_beyond_snapshot_room_is_dropped():
    script = Served()
    for cell in (script.bench.cell, script.bench.twin):
        limit_room(cell, 1_500)
    (ignored,) = script.profile()
    assert ignored.reason == "unusable_report"
    assert ignored.facts["case"] == "live_jobs"
    assert not commands(script.send(routed(script.leader, SKEWED, EVEN)))


@pytest.mark.parametrize(("experts", "most"), [(8, 2), (256, 64), (4, 64)])
def test_popularity_stays_within_counted_bytes(experts, most):
    workload = serving(4, most_experts_per_device=most)
    script = Script()
    leader, _ = script.start("a", workload)
    counts = [2**40 - 7 * number for number in range(experts)]
    script.send(profiled(leader, counts, counts))
    known = script.bench.zone._ranks.jobs["a"].popularity
    assert isinstance(known, Popularity)
    for _ in range(3):
        script.send(routed(leader, counts[::-1], [3] * experts))
    taken = len(msgpack.packb(known.state()))
    assert taken <= known.state_bytes
    assert known.state_bytes == state_bytes(2, experts, script.bench.zone._ranks.jobs["a"].cluster)
    assert rule_of(moe_zone().policy).lasting_reports == 2


def test_layers_too_large_to_send_follow_later(monkeypatch):
    monkeypatch.setattr(popularity, "MOST_COMMANDED_SLOTS", 2 * 4 * 4)
    rule = DriftRule(newest_weight=1.0, lasting_reports=1, cool_down_s=0.0, least_tokens_per_device=1)
    known = Popularity.unknown(3, 8, rule, DeviceGroup(4, 4))
    skewed = (LayerRouting(tokens=SKEWED),) * 3
    changes = [known.begin(skewed, 0.0, nodes=2)]
    changes += [known.report(skewed, time_s, nodes=2) for time_s in (1.0, 2.0, 3.0)]
    assert [[layer.placement.layer for layer in changed] for changed in changes] == [[0], [1], [2], []]
    assert known.revision == 3


def test_saturated_count_stays_at_its_bound():
    rule, cluster = rule_of(moe_zone().policy), DeviceGroup(4, 4)
    known = Popularity.unknown(1, 8, rule, cluster)
    known.begin((LayerRouting(tokens=SKEWED),), 0.0, nodes=2)
    known.tokens = MAX_TOKENS - 1
    known.report((LayerRouting(tokens=SKEWED),), 1.0, nodes=2)
    kept = msgpack.unpackb(msgpack.packb(known.state()))
    assert Popularity.from_state(kept, rule, cluster).tokens == known.tokens == MAX_TOKENS
