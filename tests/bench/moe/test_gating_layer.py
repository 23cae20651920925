"""Table 5.1: shares of tokens with one expert, and what is made of their times."""

import pytest
import torch

from bench.goals import goals
from bench.moe.gating_layer import (
    SINGLE_SHARES,
    LayerSize,
    Pass,
    gating_layer,
    gatings_by_share,
    layer_rounds,
    make_block,
)

TINY = LayerSize(tokens=200, hidden=16, intermediate=32, experts=4, rounds=3)


@pytest.mark.parametrize("share", SINGLE_SHARES)
def test_single_expert_share_matches_table(share):
    generator = torch.Generator().manual_seed(1)
    block = make_block(TINY, generator)
    tokens = torch.randn(TINY.tokens, TINY.hidden, generator=generator)
    block.gating = gatings_by_share(block.router, tokens)[share]
    block(tokens)
    assert block.last_pass is not None
    assert float(block.last_pass.routing.is_double.double().mean()) == pytest.approx(1 - share)


def test_round_has_each_share_without_extra_pairs():
    rounds = layer_rounds(TINY, torch.device("cpu"), torch.float32, seed=1)
    assert len(rounds) == TINY.rounds
    for each in rounds:
        assert {share: seen.pairs for share, seen in each.items()} == {
            share: round(TINY.tokens * (2 - share)) for share in SINGLE_SHARES
        }
        assert all(seen.forward_s > 0 and seen.backward_s > 0 for seen in each.values())


def test_ratios_are_within_rounds_next_to_thesis():
    seconds = {0.0: 1.0, 0.2: 0.9, 0.5: 0.8, 0.8: 0.6, 1.0: 0.5}
    rounds = [
        {
            share: Pass(slow * took, 2 * slow * took, round(100 * (2 - share)))
            for share, took in seconds.items()
        }
        for slow in (1.0, 7.0, 3.0)
    ]
    result = gating_layer(rounds, TINY, "", "here")
    figures = {measured.name: (measured.value, measured.runs) for measured in result.measurements}
    assert figures == {
        "gating_layer_ratio_80": (pytest.approx(0.6), 3),
        "gating_layer_ratio_50": (pytest.approx(0.8), 3),
    }
    assert set(figures) <= set(goals("moe"))
    (table,) = result.tables
    (half,) = [row for row in table.rows if row["one_expert"] == "50%"]
    assert (half["computation"], half["time"]) == pytest.approx((0.75, 0.8))
    assert (half["thesis_computation"], half["thesis_time"]) == (0.75, 0.92)
    assert half["time_ms"] == pytest.approx(3 * 3 * 0.8 * 1e3)
