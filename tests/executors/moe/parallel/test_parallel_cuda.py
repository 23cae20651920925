"""Expert parallelism over NCCL, as many ranks as there are CUDA devices."""

from itertools import pairwise

import pytest
import torch

from executors.moe.parallel.micro_ops import CollectiveKind
from tests.executors.moe.conftest import RunRanks
from tests.executors.moe.parallel.test_parallel_training import records
from tests.support import parallel_scenarios as scenarios
from tests.support.micro_ops import overlaps, waited_behind

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture
def world() -> int:
    return min(torch.cuda.device_count(), 4)


@pytest.mark.parametrize("chunks", [1, 3])
def test_outputs_and_gradients_equal_plain_ddp(run: RunRanks, world: int, chunks: int) -> None:
    results = run(
        scenarios.train,
        world,
        tokens=[13, 7, 0, 1][:world],
        experts=4,
        per_device=4 // world,
        chunks=chunks,
        hidden=8,
        layers=3,
        partition_bytes=200,
        device="cuda",
    )
    for result in results:
        assert result["largest_gradient"] > 0.1
        assert result["outputs"] < 1e-12
        assert result["gradients"] < 1e-12
    trace = [record for result in results for record in records(result)]
    assert {record.kind for record in trace} == (set(CollectiveKind) if world > 1 else set())
    assert overlaps(trace) == []


def test_allreduce_never_overlaps_all_to_all_on_cuda(run: RunRanks, world: int) -> None:
    results = run(scenarios.communicate_at_random, world, count=60, device="cuda")
    everyone = [float(rank) for rank in range(world)]
    assert all(result["sums"] == [sum(everyone)] for result in results)
    assert all(arrived == everyone for result in results for arrived in result["arrived"])
    traces = [records(result) for result in results]
    assert overlaps([record for trace in traces for record in trace]) == []
    assert max(count for trace in traces for count in waited_behind(trace).values()) <= 1
    orders = [[record.label for record in trace] for trace in traces]
    assert all(one == other for one, other in pairwise(orders))


def test_a_recording_has_the_times_of_the_device(run: RunRanks, world: int) -> None:
    for result in run(scenarios.record, world, device="cuda"):
        (recorded,) = result["recorded"]
        submitted_s = recorded["submitted_s"] - result["began_s"]
        assert submitted_s == pytest.approx(result["worked_s"], rel=0.1)
        assert recorded["submitted_s"] <= recorded["issued_s"] < recorded["completed_s"]
        assert result["host"]["submitted_s"] - result["began_s"] < submitted_s


def test_host_gradients_are_averaged_on_devices(run: RunRanks, world: int) -> None:
    mean = sum(range(1, world + 1)) / world
    for result in run(scenarios.average_staged, world, device="cuda"):
        assert result["gradient"] == pytest.approx([mean * number for number in range(10)])
