"""The three ways to multiply segments agree; packed attention sees each sequence alone."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from executors.lora.packed_attention import packed_attention
from executors.lora.randomness import derive_seed, keep_mask
from executors.lora.segment_products import (
    BatchedProducts,
    GroupedProducts,
    SegmentProducts,
    SeparateProducts,
    choose_products,
)
from tests.support.examples import examples

CPU = torch.device("cpu")


def by_hand(
    rows: Tensor, segments: Sequence[tuple[int, int]], downs: list[Tensor], ups: list[Tensor], gains: list
) -> tuple[Tensor, list[Tensor]]:
    """LoRA's update, and for each segment the gradient of ``up`` if the rows' own gradient is the update."""
    outputs = torch.zeros(len(rows), ups[0].shape[1], dtype=torch.float64)
    gradients = []
    for (start, stop), down, up, gain in zip(segments, downs, ups, gains, strict=True):
        narrow = gain * rows[start:stop].double() @ down.double().T
        outputs[start:stop] = narrow @ up.double()
        gradients.append(narrow.T @ outputs[start:stop])
    return outputs, gradients


def by_products(
    products: SegmentProducts, rows: Tensor, downs: list[Tensor], ups: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    narrow = products.narrow(products.parts(rows), products.gather(downs))
    outputs = torch.zeros(len(rows), ups[0].shape[1], dtype=rows.dtype)
    products.add_widened_(products.parts(outputs), narrow, products.gather(ups))
    return outputs, list(products.gradients(narrow, products.parts(outputs)))


@settings(max_examples=examples(25), deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    ranks=st.lists(st.integers(1, 12), min_size=5, max_size=5),
    alike=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_all_products_match_float64(lengths: list[int], ranks: list[int], alike: bool, seed: int) -> None:
    if alike:
        lengths, ranks = [lengths[0]] * len(lengths), [ranks[0]] * len(lengths)
    generator = torch.Generator().manual_seed(seed)
    ends = [sum(lengths[: k + 1]) for k in range(len(lengths))]
    segments = list(pairwise([0, *ends]))
    rows = torch.randn(ends[-1], 16, generator=generator)
    downs = [torch.randn(rank, 16, generator=generator) for _, rank in zip(lengths, ranks, strict=False)]
    ups = [torch.randn(len(down), 24, generator=generator) for down in downs]
    gains = [0.5 + k for k in range(len(lengths))]
    candidates = [SeparateProducts(segments, gains), GroupedProducts(segments, gains, CPU)]
    if alike:
        candidates.append(BatchedProducts(segments, gains, CPU))

    expected, expected_gradients = by_hand(rows, segments, downs, ups, gains)
    for products in candidates:
        outputs, gradients = by_products(products, rows, downs, ups)
        torch.testing.assert_close(outputs.double(), expected, rtol=1e-4, atol=1e-3)
        for gradient, wanted in zip(gradients, expected_gradients, strict=True):
            torch.testing.assert_close(gradient[: len(wanted)].double(), wanted, rtol=1e-3, atol=1e-1)
            assert not gradient[len(wanted) :].any()


@pytest.mark.parametrize(
    ("segments", "ranks", "device", "grouped", "chosen"),
    [
        ([(0, 4), (4, 8)], [2, 2], "cpu", False, BatchedProducts),
        ([(0, 4), (4, 8)], [2, 3], "cpu", False, SeparateProducts),
        ([(0, 4), (4, 9)], [2, 2], "cpu", True, SeparateProducts),
        ([(0, 4), (8, 12)], [2, 2], "cpu", False, SeparateProducts),
        ([(0, 4)], [2], "cpu", False, SeparateProducts),
    ],
)
def test_products_suit_batch_and_device(
    segments: list[tuple[int, int]], ranks: list[int], device: str, grouped: bool, chosen: type
) -> None:
    gains = [1.0] * len(ranks)
    products = choose_products(segments, ranks, gains, device=torch.device(device), grouped=grouped)
    assert type(products) is chosen


def test_packed_attention_is_causal_per_sequence() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = [5, 5, 3, 1, 5]
    query = torch.randn(1, 4, sum(lengths), 8, generator=generator)
    key, value = (torch.randn(1, 2, sum(lengths), 8, generator=generator) for _ in range(2))
    runs = ((5, 2), (3, 1), (1, 1), (5, 1))
    packed, _ = packed_attention(torch.nn.Identity(), query, key, value, None, sequence_runs=runs)
    start = 0
    for length in lengths:
        q, k, v = (states[:, :, start : start + length] for states in (query, key, value))
        k, v = (states.repeat_interleave(2, dim=1) for states in (k, v))
        scores = q @ k.transpose(2, 3) / 8**0.5
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
        expected = (scores.softmax(-1) @ v).transpose(1, 2)
        torch.testing.assert_close(packed[:, start : start + length], expected)
        start += length


def test_masks_keep_share_and_follow_seed() -> None:
    for dropout in (0.05, 0.5, 0.9):
        masks = [keep_mask(501, 333, dropout, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
        assert masks[0].float().mean().item() == pytest.approx(1 - dropout, abs=0.005)
        assert torch.equal(masks[0], masks[1])
        assert not torch.equal(masks[0], masks[2])


def test_seeds_differ_by_task_and_use() -> None:
    seeds = {derive_seed(s, use, n) for s in range(20) for use in ("order", "dropout") for n in range(20)}
    assert len(seeds) == 800
    assert all(0 <= seed < 2**63 for seed in seeds)
