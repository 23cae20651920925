"""Accuracy of forecasts on selections made by hand, and a model after few steps of training."""

import math

import numpy as np
import pytest
import torch

from bench.moe.estimation import EXPERTS, ExpertSelections, accuracy
from bench.moe.tiny_model import LAYERS, LibraryText, TinyModel, passages


def chain(draws: np.random.Generator, tokens: int) -> np.ndarray:
    """Draw tokens whose expert at the first layer determines all others; two experts are popular."""
    first = draws.choice(EXPERTS, tokens, p=[0.4, 0.3, *[0.3 / (EXPERTS - 2)] * (EXPERTS - 2)])
    return np.stack([(first + layer) % EXPERTS for layer in range(4)], axis=1)


@pytest.mark.parametrize("scheme", ["balanced", "lina"])
def test_selections_along_paths_are_all_forecast(scheme: str):
    draws = np.random.default_rng(0)
    selections = ExpertSelections([chain(draws, 2_000)], [chain(draws, 2_000) for _ in range(3)])
    assert accuracy(selections, scheme, 1)[1:].tolist() == [1.0, 1.0, 1.0]


def test_selections_by_chance_are_not_forecast():
    draws = np.random.default_rng(0)
    batches = [draws.integers(0, EXPERTS, (500, 4)) for _ in range(12)]
    assert accuracy(ExpertSelections(batches[:2], batches[2:]), "balanced", 3).mean() < 0.2


def test_training_and_held_back_passages_hardly_overlap():
    text = LibraryText(0)
    assert len(text.trained) > 4 * len(text.held_back) > 1_000_000
    trained = bytes(text.trained.tolist())
    starts = range(0, len(text.held_back) - 400, len(text.held_back) // 20)
    # Modules that were written one after the other share some.
    assert sum(bytes(text.held_back[start : start + 400].tolist()) in trained for start in starts) <= 2


@pytest.mark.long
def test_few_steps_lower_held_back_loss():
    torch.set_num_threads(1)
    text = LibraryText(0)
    model = TinyModel(text, 25, 0)
    draws = torch.Generator().manual_seed(0)
    chosen, loss = model.serve(text.held_back, 20, draws)
    assert chosen.shape == (20 * 128, LAYERS)
    assert 0 <= chosen.min() <= chosen.max() < EXPERTS
    assert loss < 0.9 * math.log(256)
    assert passages(text.held_back, 3, 7, draws).shape == (3, 7)
