"""When a standing placement follows the popularity of its experts, and when it does not."""

import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from solvers.experts.drift import DriftRule, LayerDrift
from solvers.experts.placement import DeviceGroup, ExpertDemand
from solvers.experts.splitting import device_loads, even_split
from tests.support.examples import examples

RULE = DriftRule(
    newest_weight=0.5, least_gain=0.1, lasting_reports=2, cool_down_s=10.0, least_tokens_per_device=10
)
FOUR = DeviceGroup(4)
SKEWED = np.array([70, 10, 10, 10])
TURNED = np.array([10, 10, 10, 70])


def begun(tokens=SKEWED, rule=RULE, cluster=FOUR):
    drift = LayerDrift(rule, cluster, len(tokens))
    drift.begin(np.array(tokens), time_s=0.0)
    return drift


def reasons_of(drift, *reports):
    """The reasons of reports, each a time and counts."""
    return [drift.report(np.array(tokens), time_s).reason for time_s, tokens in reports]


def test_first_placement_balances_the_profile():
    drift = LayerDrift(RULE, FOUR, 4)
    decision = drift.begin(SKEWED, time_s=0.0)
    assert decision.reason == "initial"
    assert decision.placement.replicas()[0] == 3
    assert decision.load == pytest.approx(1.0)


def test_without_a_profile_it_treats_all_experts_alike():
    drift = LayerDrift(RULE, FOUR, 4)
    assert drift.begin(np.zeros(4, np.int64), 0.0).placement.lists() == [[0], [1], [2], [3]]


def test_a_shift_is_followed_when_it_has_lasted():
    drift = begun()
    assert reasons_of(drift, (20, TURNED), (21, TURNED)) == ["not_lasting_yet", "popularity_shifted"]
    assert drift.placement.replicas()[3] > 1


def test_decision_has_busiest_load_before_and_after():
    drift = begun()
    drift.report(TURNED, 20)
    decision = drift.report(TURNED, 21)
    assert decision.is_change
    # By then three quarters of the average are new, 0.25, 0.1, 0.1 and 0.55. Experts 1 to 3 have 0.75 of the
    # tokens, on two of four devices.
    assert decision.load_before == pytest.approx(1.5)
    assert decision.load == pytest.approx(1.0)
    assert decision.gain == pytest.approx(1 / 3)
    assert decision.reports_in_a_row == 2
    assert decision.tokens == 100


def test_what_does_not_last_is_not_followed():
    drift = begun()
    once = ["not_lasting_yet", "small_gain", "small_gain"]
    assert reasons_of(drift, (20, TURNED), (21, SKEWED), (22, SKEWED)) == once
    assert reasons_of(drift, (23, TURNED), (24, SKEWED), (25, SKEWED)) == once


def test_after_a_change_it_waits():
    drift = begun()
    reasons_of(drift, (20, TURNED), (21, TURNED), (22, TURNED), (23, TURNED))
    assert reasons_of(drift, (24, SKEWED), (25, SKEWED), (26, SKEWED)) == [
        "not_lasting_yet",
        "cooling_down",
        "cooling_down",
    ]
    assert reasons_of(drift, (31, SKEWED)) == ["popularity_shifted"]


def test_reports_of_few_tokens_are_counted_together():
    drift = begun()
    assert reasons_of(drift, *[(time_s, TURNED // 10) for time_s in range(20, 28)]) == [
        "too_few_tokens",
        "too_few_tokens",
        "too_few_tokens",
        "not_lasting_yet",
        "too_few_tokens",
        "too_few_tokens",
        "too_few_tokens",
        "popularity_shifted",
    ]


def test_changed_devices_are_used_at_once():
    drift = begun()
    assert drift.resize(DeviceGroup(2), 1.0).reason == "devices_changed"
    assert drift.placement.devices == 2
    assert drift.resize(DeviceGroup(6), 2.0).load == pytest.approx(1.0)
    with pytest.raises(ValueError, match="4 experts do not fit on 1 devices"):
        drift.resize(DeviceGroup(1, 2), 3.0)


def test_counts_of_other_experts_are_refused():
    with pytest.raises(ValueError, match="expected 4 counts of 0 or more"):
        begun().report(np.array([1, 2, 3]), 1.0)


@pytest.mark.parametrize(
    "field",
    [
        {"newest_weight": 0.0},
        {"least_gain": 1.0},
        {"lasting_reports": 0},
        {"cool_down_s": -1.0},
        {"least_tokens_per_device": 0},
    ],
    ids=lambda field: next(iter(field)),
)
def test_rules_that_cannot_be_are_refused(field):
    with pytest.raises(ValueError, match=next(iter(field))):
        DriftRule(**field)


def test_restored_layer_decides_alike():
    drift = begun()
    reasons_of(drift, (20, TURNED), (20.5, TURNED // 20))
    restored = LayerDrift.from_json(json.loads(json.dumps(drift.to_json())), RULE, FOUR)
    reports = [(time_s, TURNED) for time_s in (21, 22, 40, 41)] + [(50, SKEWED), (60, SKEWED), (70, SKEWED)]
    assert reasons_of(restored, *reports) == reasons_of(drift, *reports)
    assert restored.to_json() == drift.to_json()


POPULARITIES = st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8).filter(lambda parts: sum(parts) > 0.1)


@settings(max_examples=examples(100), deadline=None)
@given(POPULARITIES, st.integers(0, 2**32 - 1))
def test_noise_moves_nothing(parts, seed):
    # Of reports as small as the rule takes, sixty in a row, and no pause between changes.
    cluster, rule = DeviceGroup(8), DriftRule(cool_down_s=0.0)
    popularity = np.array(parts) / sum(parts)
    draws = np.random.default_rng(seed)
    tokens = rule.least_tokens_per_device * cluster.devices
    drift = begun(draws.multinomial(10 * tokens, popularity), rule, cluster)
    reports = [(float(second), draws.multinomial(tokens, popularity)) for second in range(60)]
    assert set(reasons_of(drift, *reports)) <= {"small_gain", "not_lasting_yet"}


def reports_until_followed(rule, gain):
    """Return the number of reports that the rule states."""
    old, reports = 1 - rule.newest_weight, 1
    while old > (gain - rule.least_gain) / (1 - rule.least_gain):
        old *= 1 - rule.newest_weight
        reports += 1
    return reports + rule.lasting_reports - 1


@settings(max_examples=examples(200), deadline=None)
@given(POPULARITIES, POPULARITIES, st.sampled_from([0.2, 0.5, 0.9]), st.integers(1, 4))
def test_shift_is_followed_within_stated_reports(parts, other, weight, lasting):
    rule = DriftRule(newest_weight=weight, lasting_reports=lasting, cool_down_s=0.0)
    before, after = (np.array([round(1e6 * part) for part in some]) for some in (parts, other))
    drift = begun(before, rule, DeviceGroup(8))
    demand = ExpertDemand.of_counts(after)
    largest = int(device_loads(even_split(drift.placement, demand.loads)).max())
    gain = 1 - demand.total / 8 / largest
    assume(gain > rule.least_gain * 1.2)
    reasons = reasons_of(
        drift, *[(float(second), after) for second in range(reports_until_followed(rule, gain))]
    )
    assert "popularity_shifted" in reasons
