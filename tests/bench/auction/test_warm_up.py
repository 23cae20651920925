"""Trials that are timed have no kernel to compile."""

import pytest

from bench.auction.trials import CLEARING_BOUND, CONTENDERS
from tests.support.fresh_signatures import after_warm_up


@pytest.mark.long
def test_no_measure_needs_a_kernel_for_types_that_the_warm_up_had_not():
    measures = (*CONTENDERS, CLEARING_BOUND)
    found = after_warm_up("bench.auction.trials", *measures)
    assert found["added"] == {name: [] for name in measures}
    assert {kernel.split("(")[0] for kernel in found["warmed"]} >= {"node_slot_costs", "cheapest_plan"}
