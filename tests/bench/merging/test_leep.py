"""LEEP: by hand, and its faults."""

import math

import numpy as np
import pytest

from bench.merging.leep import leep


def test_leep_by_hand():
    # Some classes of A determine B's labels, and the others carry no information about them.
    assert leep([[1, 0], [0, 1], [1, 0]], [0, 1, 0]) == pytest.approx(0)
    assert leep([[0.5, 0.5]] * 4, [0, 1, 0, 1]) == pytest.approx(math.log(0.5))
    # P(z) = (1.2, 0.8) / 2; P(y=0|z) = (0.9, 0.1) / (1.2, 0.8), P(y=1|z) = (0.3, 0.7) / (1.2, 0.8).
    first = 0.9 * 0.9 / 1.2 + 0.1 * 0.1 / 0.8
    second = 0.3 * 0.3 / 1.2 + 0.7 * 0.7 / 0.8
    expected = (math.log(first) + math.log(second)) / 2
    assert leep([[0.9, 0.1], [0.3, 0.7]], [0, 1]) == pytest.approx(expected)


def test_leep_rises_with_predictive_classes():
    random = np.random.default_rng(3)
    labels = random.integers(0, 3, 500)
    scores = []
    for sharpness in (0.0, 1.0, 3.0):
        logits = sharpness * np.eye(3)[labels] + random.standard_normal((500, 3)) * 0.1
        theta = np.exp(logits)
        scores.append(leep(theta / theta.sum(axis=1, keepdims=True), labels))
    assert scores == sorted(scores)
    assert scores[-1] < 0


@pytest.mark.parametrize(
    ("theta", "labels", "message"),
    [
        ([0.5, 0.5], [0, 1], "shape"),
        ([[1.0]], [0, 1], "shape"),
        ([], [], "shape"),
        ([[0.5, 0.6]], [0], "distribution"),
        ([[1.5, -0.5]], [0], "distribution"),
        ([[np.nan, 1.0]], [0], "distribution"),
        ([[0.5, 0.5]], [-1], "labels"),
        ([[0.5, 0.5]], [0.0], "labels"),
    ],
)
def test_leep_refuses_what_it_cannot_read(theta, labels, message):
    with pytest.raises(ValueError, match=message):
        leep(theta, labels)
