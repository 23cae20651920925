"""Drawn routing, ranks that serve it, and the model of a service."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.moe.inference_rank import DrawnRouting, RoutingSetting, serve
from bench.moe.model_of_inference import LayerCosts, ModelledService, batch_s, passing_s, waits_s
from bench.network import loopback, run_ranks
from solvers.experts.placement import ExpertPlacement
from solvers.experts.splitting import even_split, sends

SETTING = RoutingSetting("here", experts=6, devices=2, layers=3, tokens=64, skew=1.0)
SCHEMES = ("balanced", "lina", "without_estimation", "one_per_device", "ideal")
COSTS = LayerCosts(
    token_bytes=1_000,
    link_bytes_per_s=1e6,
    all_to_all_s=0.001,
    expert_s=0.0001,
    token_s=0.00001,
    swap_s=0.001,
    gate_s=0.002,
    check_s=0.0001,
    plan_s=0.0005,
)
WHOLE = LayerCosts(
    token_bytes=100,
    link_bytes_per_s=1_000,
    all_to_all_s=0.5,
    expert_s=2.0,
    token_s=0.25,
    swap_s=3.0,
    gate_s=0.125,
    check_s=1.0,
    plan_s=4.0,
)


def shares(setting: RoutingSetting, batches: range) -> np.ndarray:
    routing = DrawnRouting(setting, 1)
    counts = sum(
        np.bincount(routing.batch(number)[:, :, 0].ravel(), minlength=setting.experts) for number in batches
    )
    return np.asarray(counts) / np.sum(counts)


def test_seed_determines_batches():
    one, same, other = (DrawnRouting(SETTING, seed).batch(3) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert one.shape == (2, 64, 3)
    assert 0 <= one.min() <= one.max() < 6


def test_larger_skew_favours_first_expert():
    even, skewed, strong = (
        shares(replace(SETTING, skew=skew, tokens=2_000), range(20)).max() for skew in (0.0, 1.0, 2.0)
    )
    assert even < 0.25 < skewed < 0.5 < strong


def test_shift_changes_popularity_not_paths():
    setting = replace(SETTING, shift_every=10, tokens=2_000, steadiness=1_000.0, skew=2.0)
    before, after = shares(setting, range(10)), shares(setting, range(10, 20))
    assert before.argmax() != after.argmax()
    routing = DrawnRouting(setting, 1)
    leads = []
    for number in (0, 15):
        batch = routing.batch(number).reshape(-1, 3)
        popular = np.bincount(batch[:, 0]).argmax()
        leads.append((popular, np.bincount(batch[batch[:, 0] == popular, 1]).argmax()))
    again = [routing.batch(number).reshape(-1, 3) for number in (15, 0)]
    for batch, (popular, lead) in zip(again, leads, strict=True):
        follows = batch[batch[:, 0] == popular, 1] == lead
        assert follows.size == 0 or follows.mean() > 0.3


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Result of the first of two ranks, which serve batches by all schemes."""
    results = run_ranks(
        serve,
        loopback(2),
        tmp_path_factory.mktemp("served"),
        120.0,
        settings=[SETTING.to_json()],
        schemes=SCHEMES,
        profiled=2,
        timed=4,
        seed=1,
    )
    return results[0]


def test_costs_are_measured(served: dict[str, Any]):
    assert min(served["costs"].values()) >= 0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_model_decides_as_the_serving_code(scheme: str, served: dict[str, Any]):
    rows = served["settings"][0][scheme]
    routing = DrawnRouting(SETTING, 1)
    batches = [routing.batch(number) for number in range(6)]
    model = ModelledService(scheme, 6, 2, 3, COSTS)
    model.profile(batches[:2])
    for row, batch in zip(rows, batches[2:], strict=True):
        steps = model.serve(batch)
        assert row["batch_s"] > 0
        assert batch_s(steps) > 0
        for layer, step in zip(row["layers"], steps, strict=True):
            assert layer["busiest"] == pytest.approx(step.load * 64)
            assert layer["revised"] == step.is_revised
            assert layer["foretold"] == step.as_forecast


def test_default_leads_where_routing_is_skewed():
    setting = RoutingSetting("here", experts=8, devices=8, layers=4, tokens=256, skew=1.0)
    routing = DrawnRouting(setting, 0)
    batches = [routing.batch(number) for number in range(12)]
    medians = {}
    for scheme in ("balanced", "eplb", "one_per_device", "ideal"):
        service = ModelledService(scheme, 8, 8, 4, COSTS)
        service.profile(batches[:4])
        medians[scheme] = np.median([batch_s(service.serve(batch)) for batch in batches[4:]])
    assert medians["balanced"] < 1.05 * medians["ideal"]
    assert medians["balanced"] < medians["eplb"]
    assert 1.6 * medians["balanced"] < medians["one_per_device"]


def test_busiest_link_and_device_determine_the_time():
    placement = ExpertPlacement.of_lists([[0, 1], [1]], 2)
    of_ranks = np.array([[4, 4], [6, 2]])
    split = even_split(placement, of_ranks.sum(axis=0))
    # Expert 0's ten tokens are on device 0, the six of expert 1 on device 1: 6 go to device 0 and 4 from it.
    assert split.tolist() == [[10, 0], [6, 0]]
    times_s = passing_s(WHOLE, split, sends(placement, split, of_ranks))
    assert times_s == pytest.approx(2.0 + 10 * 0.25 + 2 * (0.5 + 600 / 1_000))


@pytest.mark.parametrize(
    ("is_revised", "is_checked", "hidden_s", "waits"),
    [
        (False, False, 7, (0, 0)),
        (False, False, 5, (0, 2)),
        (False, False, 1, (3, 3)),
        (False, True, 7, (1, 0)),
        (True, True, 7, (5, 3)),
    ],
)
def test_previous_layer_hides_phase_one(is_revised, is_checked, hidden_s, waits):
    assert waits_s(WHOLE, is_revised, is_checked, 1, hidden_s) == waits
