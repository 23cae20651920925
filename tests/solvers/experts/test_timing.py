"""The model of a layer's time, added up by hand."""

import numpy as np
import pytest

from solvers.experts.placement import Placement
from solvers.experts.schemes import Settled
from solvers.experts.splitting import even_split, sends
from solvers.experts.timing import LayerCosts, all_to_all_s, layer_time

COSTS = LayerCosts(
    token_bytes=100,
    link_bytes_per_s=1_000,
    all_to_all_s=0.5,
    expert_s=2.0,
    token_s=0.25,
    swap_s=3.0,
    gate_s=0.125,
    check_s=1.0,
    plan_s=4.0,
)
PLACEMENT = Placement.of_lists([[0, 1], [1]], 2)
OF_RANKS = np.array([[4, 4], [6, 2]])
SPLIT = even_split(PLACEMENT, OF_RANKS.sum(axis=0))
SENT = sends(PLACEMENT, SPLIT, OF_RANKS)


def time_of(is_revised=False, is_checked=False, hidden_s=100.0, swapped=(1, 0)):
    came = Settled(PLACEMENT, SPLIT, OF_RANKS.sum(axis=0), is_revised)
    return layer_time(COSTS, came, SENT, np.array(swapped), is_checked=is_checked, hidden_s=hidden_s)


def test_busiest_link_times_all_to_all():
    # Expert 0's ten tokens are on device 0, the six of expert 1 on device 1: 6 go to device 0 and 4 from it.
    assert SPLIT.tolist() == [[10, 0], [6, 0]]
    assert all_to_all_s(COSTS, SENT) == 0.5 + 600 / 1_000


def test_what_stays_on_its_device_costs_no_transfer():
    assert all_to_all_s(COSTS, np.diag([5, 5])) == 0.5


def test_busiest_device_times_experts():
    assert time_of().experts_s == 2.0 + 10 * 0.25
    assert time_of().total_s == 0.125 + 2 * 1.1 + 4.5


def test_planning_hides_behind_previous_layer():
    assert (time_of(hidden_s=7).scheduling_s, time_of(hidden_s=7).swap_s) == (0, 0)
    assert (time_of(hidden_s=5).scheduling_s, time_of(hidden_s=5).swap_s) == (0, 2)
    assert (time_of(hidden_s=1).scheduling_s, time_of(hidden_s=1).swap_s) == (3, 3)


def test_placement_after_gate_hides_nothing():
    late = time_of(is_revised=True, is_checked=True)
    assert (late.scheduling_s, late.swap_s) == (5, 3)


def test_kept_placement_costs_its_check():
    assert time_of(is_checked=True).scheduling_s == 1


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 0.0])
def test_costs_that_cannot_be_are_refused(value):
    with pytest.raises(ValueError, match=r"link_bytes_per_s is .*, expected a finite number, above 0"):
        LayerCosts(**{**vars(COSTS), "link_bytes_per_s": value})
