"""Curves of speedup from Pollux's goodput."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.elastic.goodput import FAMILIES, GoodputModel, family_at, tuned_speedup

families = st.sampled_from(FAMILIES)


@given(families, st.integers(1, 36), st.sampled_from([1, 2, 8]))
def test_curve_starts_at_one_and_never_falls(family: GoodputModel, most: int, gpus_per_worker: int) -> None:
    curve = tuned_speedup(family, most, gpus_per_worker)
    assert curve[:2] == (0.0, 1.0)
    assert all(fewer <= more for fewer, more in itertools.pairwise(curve))


MODEL = GoodputModel(
    name="by hand",
    share=1.0,
    initial_batch_samples=100,
    max_batch_samples=1_000,
    max_gpu_batch_samples=100,
    gradient_s=1.0,
    gradient_per_sample_s=0.02,
    server_sync_s=2.0,
    server_sync_per_gpu_s=0.5,
    network_sync_s=4.0,
    network_sync_per_gpu_s=0.25,
    overlap=2,
    noise_scale_samples=300.0,
)


def test_goodput_by_hand() -> None:
    # One GPU: 1 + 0.02 x 100 = 3 s a pass, and nothing to synchronise; 200 samples take two passes.
    assert MODEL.throughput(1, 100) == pytest.approx(100 / 3)
    assert MODEL.throughput(1, 200) == pytest.approx(200 / 6)
    # Four GPUs of a server: 3 s a pass and 2 + 0.5 x 2 = 3 s to synchronise, which overlap.
    assert MODEL.throughput(4, 400) == pytest.approx(400 / 18**0.5)
    # Ten GPUs on two servers: 3 s and 4 + 0.25 x 8 = 6 s.
    assert MODEL.throughput(10, 1_000) == pytest.approx(1_000 / 45**0.5)
    assert MODEL.efficiency(100) == 1.0
    assert MODEL.efficiency(500) == 0.5
    assert MODEL.goodput(4, 400) == pytest.approx(400 / 18**0.5 * 400 / 700)


def test_best_batch_grows_with_gpus_to_bound() -> None:
    best = [MODEL.best_batch_samples(gpus) for gpus in (1, 2, 4, 8, 64, 512)]
    assert best == sorted(best)
    assert (best[0], best[-1]) == (100, 1_000)


@given(families, st.integers(1, 64), st.integers(1, 32))
def test_no_batch_is_better_than_the_best(family: GoodputModel, gpus: int, multiple: int) -> None:
    batch_samples = min(multiple * family.initial_batch_samples, family.max_batch_samples)
    assert family.goodput(gpus, batch_samples) <= family.goodput(gpus, family.best_batch_samples(gpus))


def test_large_models_scale_better_than_small_ones() -> None:
    at_16 = {family.name: tuned_speedup(family, 16, 1)[16] for family in FAMILIES}
    assert at_16["ResNet-50/ImageNet"] > at_16["BERT/SQuAD"] > at_16["NeuMF/MovieLens"]


def test_families_have_their_shares_of_jobs_drawn_evenly() -> None:
    drawn = [family_at((number + 0.5) / 1_000) for number in range(1_000)]
    for family in FAMILIES:
        assert drawn.count(family) == pytest.approx(1_000 * family.share)
    assert family_at(1.0) is FAMILIES[-1]
