"""Placement of a layer's experts for a batch, from the forecast, the routed tokens and the standing
placement."""

import numpy as np
import pytest
from torch import Tensor, int64, nn, tensor, zeros

from executors.moe.serving.phases import LayerLayout, StandingPlacement
from executors.moe.serving.profiling import History, ProfileStage, forecast_of
from executors.moe.serving.slots import ExpertSlots
from executors.moe.serving.statistics import Percentiles
from solvers.experts.paths import PathProfile
from solvers.experts.placement import DeviceGroup, ExpertDemand, ExpertPlacement
from solvers.experts.schemes import SCHEMES

CLUSTER = DeviceGroup(devices=4, most_per_device=2)
FIRST = StandingPlacement.first(4, CLUSTER)
UNKNOWN = ExpertDemand.of_counts(np.zeros(4, np.int64))
SKEWED = ExpertDemand.of_counts(np.array([70, 10, 10, 10]))
FITTING = ExpertPlacement.of_lists([[0], [0, 1], [0, 2], [0, 3]], 4, 2)


def layout(scheme: str, standing: StandingPlacement = FIRST) -> LayerLayout:
    return LayerLayout(SCHEMES[scheme], CLUSTER, standing, FIRST.placement)


@pytest.mark.parametrize("scheme", sorted(set(SCHEMES) - {"without_estimation"}))
def test_without_forecast_placement_is_kept(scheme: str) -> None:
    here = layout(scheme, StandingPlacement(FITTING, is_commanded=True))
    assert here.plan(UNKNOWN) is FITTING
    settled = here.settle(FITTING, UNKNOWN, np.array([1, 0, 0, 90]))
    assert (settled.placement, settled.is_revised) == (FITTING, False)
    assert settled.split.sum() == 91


def test_forecast_placement_replaces_first_one() -> None:
    planned = layout("balanced").plan(SKEWED)
    assert planned is not None
    # Expert 0 gets a replica on each device, and expert 3 stays on the device that had it.
    assert planned.replicas().tolist() == [4, 1, 1, 2]


def test_commanded_placement_is_kept_for_small_gain() -> None:
    here = layout("balanced", StandingPlacement(FITTING, is_commanded=True))
    planned = here.plan(SKEWED)
    assert planned is not None
    assert [free for free in FITTING.held() & ~planned.held() if free.any()] == []
    assert (planned.held() & ~FITTING.held()).sum() == 1  # In the slot that was free.
    assert layout("lina", StandingPlacement(FITTING, is_commanded=True)).plan(SKEWED) is FITTING
    turned = here.plan(ExpertDemand.of_counts(SKEWED.loads[::-1].copy()))
    assert turned is not None
    assert turned.replicas()[0] < FITTING.replicas()[0]


def test_without_estimation_all_is_decided_after_the_choice() -> None:
    here = layout("without_estimation")
    assert here.plan(SKEWED) is None
    assert here.settle(None, UNKNOWN, SKEWED.loads).is_revised


def test_revision_keeps_sufficient_devices() -> None:
    here = layout("balanced")
    settled = here.settle(here.plan(SKEWED), SKEWED, np.array([10, 70, 10, 10]))
    assert settled.is_revised
    kept = [
        set(before) & set(after)
        for before, after in zip(here.plan(SKEWED).lists(), settled.placement.lists(), strict=True)
    ]
    assert sum(map(len, kept)) >= 2


def test_history_fades() -> None:
    history = History(1, 2)
    for _ in range(100):
        history.add(0, np.array([8, 0]))
    for _ in range(40):
        history.add(0, np.array([0, 8]))
    loads = forecast_of(PathProfile(2, 1), history, SCHEMES["eplb"])(0, np.empty((0, 0))).loads
    assert loads[1] > 9 * loads[0] > 0


def test_profile_holds_back_batches_to_test_forecast() -> None:
    stage = ProfileStage(4, PathProfile(3, 2, 1), top=1)
    same = np.array([[0, 1]] * 6 + [[1, 2]] * 3)
    for batch in (same, same, same):
        assert not stage.is_over
        stage.add(batch)
    stage.add(same)
    assert stage.is_over
    profiled = stage.conclude()
    assert profiled.accuracy == 1.0
    assert profiled.profile.popularity(1).loads.tolist() == [0, 24, 12]
    assert profiled.paths == 2


def test_wrong_order_of_forecast_is_inaccurate() -> None:
    stage = ProfileStage(4, PathProfile(3, 2, 1), top=1)
    for _ in range(3):
        stage.add(np.array([[0, 1]] * 6 + [[1, 2]] * 3))
    stage.add(np.array([[0, 2]] * 6 + [[1, 1]] * 3))
    assert stage.conclude().accuracy == 0.0


def test_accuracy_needs_held_back_batches() -> None:
    stage = ProfileStage(1, PathProfile(3, 2, 1), top=1)
    stage.add(np.array([[0, 1]]))
    assert stage.conclude().accuracy is None


class Scales(nn.Module):
    """Each expert multiplies by its number."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.factors = nn.Parameter(tensor([[float(expert)] for expert in range(experts)]))

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        return rows * self.factors.repeat_interleave(counts, 0)


def test_slots_keep_experts_still_needed() -> None:
    slots = ExpertSlots(Scales(6), 3, zeros(0).device)
    assert slots.hold([1, 2]) == 2
    assert slots.hold([2, 4, 5]) == 2
    assert slots.hold([5, 2]) == 0
    rows = zeros(4, 1) + 1
    counts = zeros(3, dtype=int64)
    for expert, count in ((2, 1), (5, 3)):
        counts[slots.slots_of([expert])] = count
    assert sorted(slots.compute(rows, counts).flatten().tolist()) == [2.0, 5.0, 5.0, 5.0]
    with pytest.raises(ValueError, match="4 experts for 3 slots"):
        slots.hold([0, 1, 2, 3])


def test_percentiles_are_of_all_times() -> None:
    assert Percentiles.of([float(time) for time in range(1, 102)]) == Percentiles(median_s=51.0, p95_s=96.0)
