"""Tasks of a worker with a CUDA device, begun, switched and merged by commands."""

import pytest
import torch

from executors.tuner.settings import TunerSettings
from schemas.fleet import RunFailed, RunFinished
from schemas.merging.commands import JobOrder
from schemas.merging.reports import TaskEvaluated, TaskProfiled
from tests.support.tuner_nodes import Fleet, order, profile_of, released, workload

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

_DROPOUT = {"hyperparameters": {"dropout": 0.2}}


@pytest.fixture
def fleet(fleet: Fleet, tuner_settings: TunerSettings) -> Fleet:
    """One node with one GPU."""
    fleet.nodes.pop("n1").runner.close("node_stops")
    fleet.add("n1", gpus=1, device="cuda")
    return fleet


def job(job_id: str, iterations: int = 20, generation: int = 1, done: int = 0, **fields: object) -> JobOrder:
    return order(job_id, workload(iterations, **{**_DROPOUT, **fields}), generation, resume_iterations=done)


def test_profile_run_measures_device(fleet: Fleet) -> None:
    fleet.send(profile_of("n1", job("a", hyperparameters={})))
    fleet.until_over("a/1")
    (report,) = fleet.reports(TaskProfiled)
    # Each of another batch, and with dropout: so few need not fall from the first to the last.
    assert min(report.losses[1:]) < report.losses[0]
    assert report.memory_gib > 0
    assert len(report.steps) == 2


def test_switched_task_gives_same_result(fleet: Fleet) -> None:
    fleet.assign(job("whole", 40))
    fleet.until_over("whole/1")
    fleet.assign(job("parts", 40))
    fleet.until(lambda: fleet.reports(TaskEvaluated, "parts"))
    fleet.assign(job("other", 15, dataset="other.jsonl"))
    fleet.send(released("n1", "parts"))
    fleet.until_over("other/1", "parts/1")
    done = fleet.reports(TaskEvaluated, "parts")[-1].samples_done
    fleet.assign(job("parts", 40, 2, done), generation=2)
    fleet.until_over("parts/2")
    assert not fleet.reports(RunFailed)
    assert {report.job_id for report in fleet.reports(RunFinished)} == {"whole", "parts", "other"}
    ends = {name: fleet.reports(TaskEvaluated, name) for name in ("whole", "parts")}
    for reports in ends.values():
        assert reports[-1].loss < reports[0].loss
    whole, parts = fleet.adapter("whole"), fleet.adapter("parts")
    assert whole.keys() == parts.keys()
    # Sums on the device depend on the order in which its threads come to them.
    for name, matrix in whole.items():
        torch.testing.assert_close(parts[name], matrix, rtol=0.05, atol=5e-3)


@pytest.mark.parametrize("mode", ["temporal", "spatial"])
def test_merged_tasks_finish(fleet: Fleet, mode: str) -> None:
    fleet.assign(job("a"), job("b", dataset="other.jsonl"), mode=mode)
    fleet.until_over("a/1", "b/1")
    assert not fleet.reports(RunFailed)
    assert {report.job_id for report in fleet.reports(RunFinished)} == {"a", "b"}
    for name in ("a", "b"):
        assert all(matrix.isfinite().all() for matrix in fleet.adapter(name).values())
