"""The cells that decisions are timed in are filled with a bounded number of bids."""

import pytest

from bench.spine.cells import DECLARED, filled


@pytest.mark.parametrize("policy", [None, DECLARED], ids=["found prices", "declared bounds"])
def test_filling_ends_at_its_bid_limit(policy):
    fed, _ = filled(nodes=2, seed=0, share=1.0, policy=policy, bids=30)
    assert fed.bids == 30
    assert 0 < fed.used_share() < 1


def test_filling_ends_with_the_share_asked_for():
    fed, _ = filled(nodes=2, seed=0, share=0.1)
    assert fed.used_share() >= 0.1
    assert fed.bids == 50
