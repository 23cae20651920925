"""Experts that do not fit a device's memory are trained from the host's as those on the device are."""

from typing import Any

import numpy as np
import pytest

from tests.executors.moe.conftest import RunRanks
from tests.executors.moe.training.test_equal_training import ADAPTER, ADAPTIVE, assert_equal
from tests.support import trained_ranks as scenarios

LAYERS = 3
EXPERT_BYTES = 8 * (2 * 16 * 64 + 64 + 16)
"""Bytes of an expert of the tiny GPT-2."""


def budget_of(resident: int) -> int:
    """Least budget for `resident` experts of each layer and one that is loaded: a resident one has
    parameters, accumulated and new gradients and two moments; the loaded one has parameters and gradients."""
    return (resident * (4 * LAYERS + 1) + 2) * EXPERT_BYTES


def assert_within(result: dict[str, Any], budget_bytes: int) -> None:
    """Assert that the experts of a rank stay within the budget of device memory."""
    resident = result["resident"][-1]
    assert result["kept_bytes"] == resident * LAYERS * 4 * EXPERT_BYTES
    assert result["visiting_bytes"] == EXPERT_BYTES
    assert result["kept_bytes"] + resident * EXPERT_BYTES + 2 * result["visiting_bytes"] <= budget_bytes


@pytest.mark.parametrize(
    ("world", "resident"),
    [
        pytest.param(1, 3, id="three of four on one rank"),
        pytest.param(2, 1, id="one of two on two ranks"),
        pytest.param(1, 0, id="none on one rank", marks=pytest.mark.long),
        pytest.param(2, 0, id="none on two ranks", marks=pytest.mark.long),
    ],
)
def test_offloaded_experts_train_like_resident_ones(run: RunRanks, world: int, resident: int) -> None:
    setup = {"gating": ADAPTIVE}
    results = run(scenarios.train, world, memory_bytes=budget_of(resident), **setup)
    on_device = run(scenarios.train, world, **setup)
    assert_equal(results, setup)
    for result, expected in zip(results, on_device, strict=True):
        assert (result["resident"], expected["resident"]) == ([resident], [4 // world])
        np.testing.assert_allclose(result["losses"], expected["losses"], rtol=1e-12)
        assert_within(result, budget_of(resident))
        assert expected["visiting_bytes"] == 0
    for name, values in on_device[0]["parameters"].items():
        # Some have no gradient but what rounding leaves, which differs from machine to machine.
        np.testing.assert_allclose(results[0]["parameters"][name], values, rtol=1e-10, atol=1e-10)


@pytest.mark.long
def test_sufficient_budget_offloads_none(run: RunRanks) -> None:
    (result,) = run(scenarios.train, 1, memory_bytes=4 * (4 * LAYERS + 1) * EXPERT_BYTES)
    assert (result["resident"], result["visiting_bytes"]) == ([4], 0)


@pytest.mark.long
def test_repacking_chooses_residents_again(run: RunRanks) -> None:
    setup = {"gating": ADAPTIVE}
    budget_bytes = budget_of(1)
    results = run(scenarios.train, 4, packed={2: 2, 4: 4}, memory_bytes=budget_bytes, **setup)
    assert_equal(results, setup)
    for result in results:
        assert (result["per_device"], result["resident"]) == ([1, 4], [1, 1, 1])
        assert result["left"] == 0  # of the parameters before
        assert_within(result, budget_bytes)


@pytest.mark.parametrize(
    ("memory_bytes", "again", "resident"),
    [
        pytest.param(budget_of(1), {"world": 1, "memory_bytes": budget_of(3)}, 3, id="more on one rank"),
        pytest.param(
            *(budget_of(0), {"world": 2, "memory_bytes": None}, 2), id="all", marks=pytest.mark.long
        ),
        pytest.param(
            *(None, {"world": 2, "memory_bytes": budget_of(1)}, 1), id="fewer", marks=pytest.mark.long
        ),
    ],
)
def test_job_resumes_under_another_budget(
    run: RunRanks, memory_bytes: int | None, again: dict[str, Any], resident: int
) -> None:
    setup = {"gating": ADAPTIVE}
    results = run(scenarios.resume, 2, steps=3, memory_bytes=memory_bytes, again=again, **setup)
    results = results[: again["world"]]
    assert [result["resident"] for result in results] == [resident] * again["world"]
    assert_equal(results, setup, after=3)


@pytest.mark.long
@pytest.mark.parametrize(
    ("targets", "memory_bytes", "expert_bytes"),
    [
        (ADAPTER["target_modules"], 150_000, 8 * (3 * 16 * 24 + 2 * (16 + 48 + 24 + 16))),
        (["q_proj"], 30_000, 8 * 3 * 16 * 24),
    ],
    ids=["adapter on experts", "adapter beside experts"],
)
def test_off_loaded_experts_take_their_adapters_along(
    run: RunRanks, targets: list[str], memory_bytes: int, expert_bytes: int
) -> None:
    setup = {"family": "llama", "gating": ADAPTIVE, "adapter": ADAPTER | {"target_modules": targets}}
    results = run(scenarios.train, 2, packed={3: 4}, memory_bytes=memory_bytes, **setup)
    assert_equal(results, setup)
    assert (results[0]["resident"], results[0]["visiting_bytes"]) == ([1, 1], expert_bytes)


@pytest.mark.long
def test_offloaded_experts_follow_planned_order(run: RunRanks) -> None:
    setup = {"gating": ADAPTIVE, "hyperparameters": {"micro_op_mb": 0.005}}
    results = run(
        scenarios.train_by_plan, 4, ordering="planned", packed={0: 2}, memory_bytes=budget_of(1), **setup
    )
    expected = scenarios.reference(setup)
    np.testing.assert_allclose(results[0]["losses"], expected["losses"], rtol=1e-9)
    for name, values in expected["parameters"].items():
        np.testing.assert_allclose(results[0]["parameters"][name], values, rtol=1e-6, atol=1e-9, err_msg=name)
