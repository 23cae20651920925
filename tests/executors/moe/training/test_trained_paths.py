"""Sample paths of the last steps of a training, of all ranks, while the balance loss is stable."""

from typing import Any

import pytest
import torch

from solvers.experts.paths import PathProfile
from tests.executors.moe.conftest import RunRanks
from tests.support import trained_ranks as scenarios
from tests.support.trained_ranks import PATH_EXPERTS, PATH_LAYERS, passes_of_step

STEPS = 40
STABLE = [1.1] * STEPS


def of_steps(steps: range) -> dict[str, list[Any]]:
    """All paths of the tokens of these steps."""
    profile = PathProfile(PATH_EXPERTS, PATH_LAYERS)
    for step in steps:
        chosen = [each.routing.first_expert for each in passes_of_step(step)]
        profile.add(torch.stack(chosen, dim=1).numpy())
    return {name: array.tolist() for name, array in profile.arrays().items()}


@pytest.mark.parametrize("world", [1, 2])
def test_last_quarter_is_collected_of_all_ranks(run: RunRanks, world: int) -> None:
    results = run(scenarios.collect_paths, world, balance=STABLE)
    assert results[0] == of_steps(range(30, STEPS))
    assert results[1:] == [{}] * (world - 1)


def test_paths_of_checkpoint_are_kept(run: RunRanks) -> None:
    # The loss of the steps before is unknown, so the next 15 steps are not counted.
    results = run(scenarios.collect_paths, 2, balance=STABLE, saved_at=35)
    assert results[0] == of_steps(range(30, 35))


@pytest.mark.parametrize(
    "balance",
    [
        [2.0 * 0.99**step for step in range(STEPS)],
        [1.1] * 36 + [2.0] * 4,
        [1.1] * 15,
    ],
    ids=["falls", "rises at the end", "too few steps"],
)
def test_nothing_is_kept_of_an_unstable_balance(run: RunRanks, balance: list[float]) -> None:
    assert run(scenarios.collect_paths, 1, balance=balance)[0] == of_steps(range(0))


def test_slight_changes_of_balance_are_stable(run: RunRanks) -> None:
    balance = [1.1 + 0.02 * (step % 3) for step in range(STEPS)]
    assert run(scenarios.collect_paths, 1, balance=balance)[0] == of_steps(range(30, STEPS))
