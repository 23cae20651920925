"""Batches and learning rates by gradient noise: right on known noise, within bounds on any."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.elastic.batch_tuning import (
    NoiseScale,
    SmallGradients,
    best_batch,
    candidates,
    learning_rate,
    noise_and_signal,
)

numbers = st.floats(allow_nan=True, allow_infinity=True)
scales = st.none() | st.floats(1e-300, 1e300)


@pytest.mark.parametrize("parts", [(8, 8), (1, 15), (3,), (16, 4, 4)])
def test_known_noise_is_found(parts: tuple[int, ...]) -> None:
    draw = np.random.default_rng(1)
    batch, size, deviation = max(sum(parts), 8), 64, 0.5
    true = np.full(size, 0.25)
    scale = NoiseScale()
    trials = []
    for _ in range(4_000):
        each = true + deviation * draw.standard_normal((batch, size))
        starts = np.cumsum((0, *parts))
        means = [each[start : start + part].mean(0) for start, part in zip(starts, parts, strict=False)]
        small = SmallGradients(
            sum(part * float(mean @ mean) for part, mean in zip(parts, means, strict=True)),
            sum(parts),
            len(parts),
        )
        estimate = noise_and_signal(small, float(np.linalg.norm(each.mean(0))), batch)
        assert estimate is not None
        trials.append(estimate)
        scale = scale.after(*estimate)
    noise, signal = np.mean(trials, axis=0)
    assert noise == pytest.approx(size * deviation**2, rel=0.03)
    assert signal == pytest.approx(float(true @ true), rel=0.03)
    assert scale.sequences == pytest.approx(4.0, rel=0.6)  # of the latest steps alone


def test_whole_batch_has_no_estimate() -> None:
    assert noise_and_signal(SmallGradients(8.0, 8, 1), 1.0, 8) is None


@given(st.lists(st.tuples(numbers, numbers), max_size=20))
def test_any_history_gives_usable_scale(history: list[tuple[float, float]]) -> None:
    scale = NoiseScale()
    for noise, signal in history:
        scale = scale.after(noise, signal)
    assert scale.sequences is None or 0 < scale.sequences < math.inf


@given(
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(0, 1_000),
    scales,
    st.floats(1e-6, 1e6),
    st.floats(0, 1e6),
)
def test_batch_is_best_within_bounds(
    own: int, less: int, more: int, scale: float | None, sequence_s: float, fixed_s: float
) -> None:
    bounds = (max(1, own - less), own + more)

    def step_s(batch: int) -> float:
        return fixed_s + batch * sequence_s

    batch = best_batch(own, bounds, scale, step_s)
    assert bounds[0] <= batch <= bounds[1]
    if scale is None:
        assert batch == own
    else:
        worth = [n / step_s(n) * (scale + own) / (scale + n) for n in candidates(own, *bounds)]
        assert batch / step_s(batch) * (scale + own) / (scale + batch) == max(worth)
    assert 0 < learning_rate(1e-3, own, batch, scale, (0.0, 2e-3)) <= 2e-3
    assert 5e-4 <= learning_rate(1e-3, own, batch, scale, (5e-4, 2e-3)) <= 2e-3


def test_noise_favours_larger_batches() -> None:
    def step_s(batch: int) -> float:
        return 1.0 + 0.01 * batch

    quiet, noisy = (best_batch(32, (8, 1_024), scale, step_s) for scale in (1.0, 10_000.0))
    assert quiet < 64 < noisy
    assert learning_rate(1e-3, 32, 128, 1e9, (0.0, 1.0)) == pytest.approx(2e-3)
    assert learning_rate(1e-3, 32, 128, 1e-9, (0.0, 1.0)) == pytest.approx(1e-3)
    assert learning_rate(1e-3, 32, 2, 1e9, (0.0, 1.0)) == pytest.approx(2.5e-4)
    assert learning_rate(1e-3, 32, 2, 1e9, (5e-4, 1.0)) == 5e-4
