"""Trials that are timed have no kernel to compile."""

import pytest

from bench.auction.trials import CLEARING_BOUND, CONTENDERS
from tests.support.fresh_signatures import after_warm_up


@pytest.mark.long
def test_warm_up_covers_kernels_of_measures():
    measures = (*CONTENDERS, CLEARING_BOUND)
    found = after_warm_up("bench.auction.trials", *measures)
    assert found["added"] == {name: [] for name in measures}
    assert {kernel.split("(")[0] for kernel in found["warmed"]} >= {"node_slot_costs", "cheapest_plan"}
