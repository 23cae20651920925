"""Steps from measured placements: a small folder of that form."""

from pathlib import Path

import pytest

from bench.merging.measured import read_profiles
from bench.merging.measured_truth import GpuCluster, PlacementStepTimes
from tests.support.profiles import write_profiles


@pytest.fixture
def step_times(tmp_path: Path) -> PlacementStepTimes:
    """On one or two nodes of two GPUs."""
    write_profiles(tmp_path)
    (tmp_path / "tiny_X1_placements.csv").write_text(
        "placement,local_bsz,step_time,sync_time\n"
        "1,2,0.2,0.0\n1,8,0.7,0.0\n1,16,1.6,0.0\n2,8,0.75,0.05\n2,2,0.25,0.05\n11,2,0.4,0.2\n11,8,0.9,0.2\n"
    )
    (tmp_path / "tiny_X1_scalability.csv").write_text(
        "num_nodes,num_replicas,local_bsz,step_time,sync_time\n2,4,4,0.65,0.25\n3,4,4,0.9,0.5\n"
    )
    return PlacementStepTimes(read_profiles(tmp_path, "tiny", "X1"), GpuCluster(2, 2))


@pytest.mark.parametrize(
    ("placement", "step_s", "accumulated"),
    [((1,), 1.4, 2), ((2,), 0.75, 1), ((1, 1), 0.9, 1)],
    ids=["twice 8", "8 on each of one node", "8 on each of two"],
)
def test_accumulation_determines_step_time(step_times, placement, step_s, accumulated):
    step = step_times.fastest(16, placement)
    assert (step.step_s, step.accumulation_steps) == (pytest.approx(step_s), accumulated)


def test_unmeasured_placement_uses_nearest_node_count(step_times):
    assert step_times.fastest(16, (2, 2)).step_s == 0.65
    assert step_times.fastest(16, (1, 1, 1, 1)).step_s == 0.9


def test_gpus_without_part_of_batch_idle(step_times):
    step = step_times.fastest(2, (2,))
    assert (step.gpus, step.step_s) == (1, 0.2)


def test_compact_placement_uses_fewest_nodes():
    assert [GpuCluster(3, 4).compact(gpus) for gpus in (1, 4, 6, 12)] == [(1,), (4,), (2, 4), (4, 4, 4)]
