"""The model of a training step, on steps that can be followed by hand, and on what must hold of any."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.moe.model_of_training import BACKWARD_WORK, Costs, fitted, modelled_step
from bench.moe.training_shape import BASELINE, Variant
from tests.support.examples import examples

PRIORITY = Variant("priority")
COSTS = Costs(
    dense_s=2.0,
    experts_s=1.0,
    exchanged_s=2.0,
    dense_gradients_s=0.0,
    expert_gradients_s=0.0,
    micro_op_s=0.0,
    slowdown=2.0,
    bucket_layers=1,
    parts=4,
)


def test_without_gradients_a_step_is_computation_and_all_to_alls_one_after_another() -> None:
    times = modelled_step(COSTS, world=2, layers=1, variant=PRIORITY)

    assert times.forward_s == pytest.approx(2.0 + 1.0 + 1.0 + 1.0)
    assert times.backward_s == pytest.approx(1.0 + BACKWARD_WORK * 1.0 + 1.0 + BACKWARD_WORK * 2.0)
    assert times.all_to_all_s == pytest.approx(4.0)
    assert times.efficiency == 0.0


def test_chunks_travel_while_experts_compute() -> None:
    times = modelled_step(COSTS, 2, 1, replace(PRIORITY, chunks=2))

    # Half arrives at 0.5, computes until 1 while the other half comes, which computes until 1.5; the second
    # half returns until 2.
    assert times.layers_forward_s == pytest.approx(2.0)
    assert times.efficiency > 0.0


def test_with_all_experts_on_each_device_there_is_no_all_to_all() -> None:
    times = modelled_step(COSTS, 2, 3, replace(PRIORITY, per_device=2))

    assert times.all_to_all_s == 0.0
    assert times.step_s == pytest.approx(3 * 3.0 * (1 + BACKWARD_WORK))


def test_unscheduled_an_all_to_all_is_slowed_while_an_allreduce_runs() -> None:
    costs = replace(COSTS, dense_gradients_s=100.0)

    times = modelled_step(costs, 2, 2, BASELINE)

    # Of the four of the backward pass, the two of the lower layer meet the allreduce of the upper one.
    assert times.all_to_all_backward_s == pytest.approx(1.0 + 1.0 + 2.0 + 2.0)


def test_with_priority_an_all_to_all_waits_behind_the_allreduce_that_came_first_and_less_if_it_is_cut() -> (
    None
):
    costs = replace(COSTS, dense_gradients_s=6.0)

    whole = modelled_step(costs, 2, 3, PRIORITY)
    cut = modelled_step(costs, 2, 3, replace(PRIORITY, partition_bytes=1))

    # The top layer's 6 s begin when the middle layer's tokens are back, 4 s before the lowest layer's go.
    assert whole.all_to_all_backward_s == pytest.approx(6.0 + 2.0)
    assert cut.all_to_all_backward_s == pytest.approx(6.0 + 0.5)  # three micro-ops of 1.5 s


def test_averaging_experts_costs_as_much_as_their_replicas_send() -> None:
    costs = replace(COSTS, expert_gradients_s=3.0, dense_s=0.0)

    times = modelled_step(costs, 2, 1, replace(PRIORITY, per_device=2))

    assert times.allreduce_s == pytest.approx(2 * 3.0 * 2 * (2 - 1) / 2)


seconds = st.floats(min_value=0.0, max_value=3.0)


@settings(max_examples=examples(60), deadline=None)
@given(
    dense_s=seconds,
    experts_s=seconds,
    exchanged_s=st.floats(min_value=0.01, max_value=3.0),
    gradients_s=seconds,
    layers=st.integers(1, 4),
    is_scheduled=st.booleans(),
    chunks=st.integers(1, 3),
    slowdown=st.floats(min_value=1.1, max_value=4.0),
)
def test_the_link_carries_all_bytes_and_a_step_is_no_shorter_than_it_or_the_device_needs(
    dense_s: float,
    experts_s: float,
    exchanged_s: float,
    gradients_s: float,
    layers: int,
    is_scheduled: bool,
    chunks: int,
    slowdown: float,
) -> None:
    costs = Costs(dense_s, experts_s, exchanged_s, gradients_s, 0.0, 0.0, slowdown, 1, 3)
    variant = Variant("any", is_scheduled=is_scheduled, chunks=chunks, partition_bytes=1)

    times = modelled_step(costs, 4, layers, variant)

    computing_s = layers * (dense_s + experts_s) * (1 + BACKWARD_WORK)
    sending_s = layers * (4 * exchanged_s * 3 / 4 + gradients_s * 2 * 3 / 4)
    all_in_turn_s = computing_s + sending_s
    assert max(computing_s, sending_s) - 1e-6 <= times.step_s <= all_in_turn_s + 1e-6


def test_costs_are_fitted_to_a_published_step() -> None:
    costs = replace(COSTS, dense_s=0.0, experts_s=0.5, exchanged_s=1.0, dense_gradients_s=1.0)

    fit = fitted(costs, 4, 12, BASELINE, step_s=0.706, all_to_all_s=0.259)
    times = modelled_step(fit, 4, 12, BASELINE)

    assert times.step_s == pytest.approx(0.706, rel=1e-3)
    assert times.all_to_all_s == pytest.approx(0.259, rel=1e-3)
    assert fit.experts_s == pytest.approx(0.5 * fit.exchanged_s)


def test_a_step_that_is_all_communication_cannot_be_fitted() -> None:
    with pytest.raises(ValueError, match="no room to compute"):
        fitted(replace(COSTS, experts_s=5.0), 4, 2, BASELINE, step_s=1.0, all_to_all_s=0.99)
