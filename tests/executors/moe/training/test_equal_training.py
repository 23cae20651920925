"""Ranks together train what one process does: losses, routing and parameters."""

from typing import Any

import numpy as np
import pytest

from tests.executors.moe.conftest import RunRanks
from tests.support import trained_ranks as scenarios

ADAPTIVE = {"mode": "adaptive", "threshold": 0.15}
ADAPTER = {"rank": 2, "alpha": 4.0, "target_modules": ["gate_up_proj", "down_proj", "q_proj"]}


def assert_equal(results: list[dict[str, Any]], setup: dict[str, Any], after: int = 0) -> None:
    """Losses after so many steps, routing, and all that is trained."""
    expected = scenarios.reference(setup)
    # Their normalization computes in float32, whatever the model is.
    is_float32 = setup.get("family", "gpt2") not in ("gpt2", "bert")
    for result in results:
        tolerance = 1e-6 if is_float32 else 1e-9
        np.testing.assert_allclose(result["losses"], expected["losses"][after:], rtol=tolerance)
        assert result["doubles"] == expected["doubles"][after:]
    trained = results[0]["parameters"]
    assert trained.keys() == expected["parameters"].keys()
    for name, values in expected["parameters"].items():
        relative, absolute = (1e-4, 1e-5) if is_float32 else (1e-6, 1e-9)
        np.testing.assert_allclose(trained[name], values, rtol=relative, atol=absolute, err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize(
    "gating", [{"mode": "top1"}, {"mode": "top2"}, ADAPTIVE], ids=["top1", "top2", "adaptive"]
)
def test_two_ranks_train_what_one_process_does(run: RunRanks, gating: dict[str, Any]) -> None:
    setup = {"gating": gating}
    assert_equal(run(scenarios.train, 2, **setup), setup)


@pytest.mark.long
@pytest.mark.parametrize(
    ("world", "setup"),
    [
        pytest.param(
            2,
            {"family": "llama", "adapter": ADAPTER, "gating": ADAPTIVE},
            id="adapter on experts and attention",
        ),
        pytest.param(2, {"adapter": ADAPTER | {"target_modules": ["down_proj"]}}, id="adapter on experts"),
        pytest.param(
            3,
            {"family": "llama", "adapter": ADAPTER | {"target_modules": ["q_proj"]}},
            id="adapter beside experts, and three ranks",
        ),
        pytest.param(
            2, {"family": "llama", "gating": ADAPTIVE, "per_device": 4}, id="all experts everywhere"
        ),
        pytest.param(4, {"family": "mixtral", "gating": ADAPTIVE, "per_device": 2}, id="replicated experts"),
        pytest.param(2, {"family": "bert"}, id="classifier"),
        pytest.param(2, {"family": "switch", "gating": {"mode": "top1"}}, id="encoder and decoder"),
        pytest.param(
            2,
            {"hyperparameters": {"curriculum": True}, "gating": ADAPTIVE, "work_samples": 45},
            id="curriculum",
        ),
        pytest.param(1, {"gating": ADAPTIVE}, id="one rank"),
        pytest.param(1, {"ordering": "planned"}, id="one rank, and nothing to plan"),
        pytest.param(
            4,
            {"experts": 16, "hyperparameters": {"global_batch_size": 4}, "work_samples": 13},
            id="fewer samples than ranks, and more experts than tokens",
        ),
        pytest.param(
            1, {"hyperparameters": {"global_batch_size": 1}, "work_samples": 5}, id="a batch of one"
        ),
        pytest.param(
            2, {"gating": ADAPTIVE, "decisiveness": 50.0, "experts": 8}, id="experts without tokens"
        ),
    ],
)
def test_so_they_do_whatever_is_trained(run: RunRanks, world: int, setup: dict[str, Any]) -> None:
    assert_equal(run(scenarios.train, world, **setup), setup)


@pytest.mark.long
def test_repacking_during_training_changes_nothing(run: RunRanks) -> None:
    setup = {"gating": ADAPTIVE, "adapter": None}
    results = run(scenarios.train, 4, packed={2: 2, 4: 4}, **setup)
    assert results[0]["per_device"] == [1, 4]
    assert_equal(results, setup)


@pytest.mark.long
def test_repacking_moves_adapters_with_experts(run: RunRanks) -> None:
    setup = {"family": "llama", "gating": ADAPTIVE, "adapter": ADAPTER}
    assert_equal(run(scenarios.train, 2, packed={3: 4}, **setup), setup)


@pytest.mark.long
@pytest.mark.parametrize("adapter", [None, ADAPTER], ids=["all weights", "adapter"])
@pytest.mark.parametrize(("world", "per_device"), [(1, None), (2, 4)], ids=["one rank", "packed otherwise"])
def test_resumed_training_with_packing_is_equal(
    run: RunRanks, adapter: dict[str, Any] | None, world: int, per_device: int | None
) -> None:
    setup = {
        "family": "llama",
        "gating": ADAPTIVE,
        "adapter": adapter,
        "hyperparameters": {"curriculum": True},
    }
    results = run(scenarios.resume, 2, steps=4, again={"per_device": per_device, "world": world}, **setup)
    assert_equal(results[:world], setup, after=4)


@pytest.mark.long
def test_controller_packs_at_its_steps_only(run: RunRanks) -> None:
    setup = {"hyperparameters": {"global_batch_size": 4}, "work_samples": 64}
    results = run(scenarios.adjust, 4, **setup)
    packings = results[0]["packings"]
    assert [result["packings"] for result in results] == [packings] * 4
    for index, (step, per_device) in enumerate(packings):
        assert (step, per_device) == (10 + 4 * index, 2 * 2**index)
    expected = scenarios.reference(setup)["parameters"]
    for name, values in expected.items():
        np.testing.assert_allclose(results[0]["parameters"][name], values, rtol=1e-5, atol=1e-8)


@pytest.mark.long
def test_planned_training_is_equal_despite_repacking(
    run: RunRanks,
) -> None:
    setup = {"gating": ADAPTIVE, "work_samples": 57, "hyperparameters": {"micro_op_mb": 0.005}}
    results = run(scenarios.train_by_plan, 4, ordering="planned", packed={5: 2}, **setup)
    expected = scenarios.reference(setup)
    np.testing.assert_allclose(results[0]["losses"], expected["losses"], rtol=1e-9)
    for name, values in expected["parameters"].items():
        np.testing.assert_allclose(results[0]["parameters"][name], values, rtol=1e-6, atol=1e-9, err_msg=name)
    plans, orders = results[0]["plans"], results[0]["orders"]
    for result in results:
        assert (result["plans"], result["orders"]) == (plans, orders)
    assert [bool(plan) for plan in plans] == [False] * 3 + [True] * 2 + [False] * 3 + [True] * 2
    assert (plans[3], plans[8]) == (plans[4], plans[9])
    # Two ranks have each expert from then on, and average its gradients.
    assert len(plans[8]) > len(plans[3])
    for plan, order in zip(plans, orders, strict=True):
        assert order == (plan or order)
