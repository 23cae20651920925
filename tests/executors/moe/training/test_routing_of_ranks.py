"""Counts of the shares of a batch add up to those of the batch, and so do their balance losses."""

import numpy as np
import pytest
import torch

from executors.moe.block import LayerPass, auxiliary_loss
from executors.moe.gating import Gating, route
from executors.moe.training.routing import BatchRouting, RoutedBatches

LENGTHS = [5, 3, 7, 2]
EXPERTS = 4


def passes_of(logits: list[torch.Tensor], gating: Gating, samples: range) -> list[LayerPass]:
    begin, end = sum(LENGTHS[: samples.start]), sum(LENGTHS[: samples.stop])
    lengths = torch.tensor(LENGTHS[samples.start : samples.stop])
    sequence = torch.arange(len(lengths)).repeat_interleave(lengths)
    return [LayerPass(route(each[begin:end], gating), sequence, len(lengths)) for each in logits]


@pytest.mark.parametrize(
    "gating", [Gating("top1"), Gating("top2"), Gating("adaptive", 0.2)], ids=lambda gating: gating.mode
)
@pytest.mark.parametrize("shares", [[range(4)], [range(1), range(1, 4)], [range(3), range(3, 4), range(0)]])
def test_shares_add_up_to_the_batch(gating: Gating, shares: list[range]) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = [torch.randn(sum(LENGTHS), EXPERTS, generator=generator, dtype=torch.float64) for _ in range(3)]
    whole = passes_of(logits, gating, range(4))
    parts = [
        BatchRouting.of_share(passes_of(logits, gating, share), EXPERTS, 4, share, 1.5)
        if share
        else BatchRouting.nothing(3, EXPERTS, 4)
        for share in shares
    ]
    total = parts[0].summed(torch.stack([part.vector for part in parts]).sum(0))

    assert total.loss == 1.5 * sum(bool(share) for share in shares)
    assert total.lengths.tolist() == LENGTHS
    for layer, each in enumerate(whole):
        assert total.pairs[layer].tolist() == each.routing.counts.tolist()
        assert total.doubles[layer] == each.routing.is_double.sum()
        np.testing.assert_allclose(total.ratios[layer], each.double_ratio_of_sequences)
    losses = [total.balance_loss(passes_of(logits, gating, share)) for share in shares if share]
    expected = auxiliary_loss(dict(enumerate(whole)))
    torch.testing.assert_close(torch.stack(losses).sum(), expected)
    assert total.mean_balance_loss == pytest.approx(float(expected) / 3)

    routed = RoutedBatches(3, EXPERTS)
    routed.add(total)
    routed.add(total)
    assert [layer.tokens for layer in routed.drain()] == [
        tuple(2 * count for count in each.routing.counts.tolist()) for each in whole
    ]
    assert routed.batches == 0
