"""A job that trains on a CUDA device: in bfloat16 where products are computed, and by the runner."""

import logging
from typing import Any

import pytest
import torch

from executors.moe.conversion.storage import load
from schemas.experts.reports import ExpertsRouted
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunStarted
from tests.executors.moe.conftest import RunRanks
from tests.support import trained_ranks as scenarios
from tests.support.moe_nodes import EXPERTS, LAYERS, Fleet, training

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize(
    "fields",
    [{}, {"adapter": {"rank": 2, "target_modules": ["gate_up_proj", "down_proj", "q_proj"]}}],
    ids=["all_weights", "adapter"],
)
def test_a_device_trains_what_a_cpu_does(fleet: Fleet, fields: dict[str, Any]) -> None:
    fleet.add("n2", gpus=1, device="cuda")
    for name, job_id in (("n1", "cpu"), ("n2", "gpu")):
        fleet.assign(job_id, [(name, 1)], training(1, **fields))
        fleet.until(fleet.is_over(job_id, name), 120.0)
    assert not fleet.reports(RunFailed)
    losses = {report.job_id: report.loss for report in fleet.reports(RunFinished)}
    assert losses["gpu"] == pytest.approx(losses["cpu"], rel=5e-2)
    load(fleet.result("gpu"))
    assert fleet.reports(ExpertsRouted, "gpu")


def test_job_resumes_on_available_devices(fleet: Fleet) -> None:
    ranks = min(torch.cuda.device_count(), 4)
    fleet.add("n1", gpus=ranks, device="cuda", checkpoint_s=1e-3, progress_s=1e-3)
    fleet.assign("j", [("n1", ranks)], training(ranks))
    fleet.until(lambda: any(each.samples_done >= 12 for each in fleet.reports(RunProgressed)), 120.0)
    fleet.release("j", "preempted")
    fleet.until(fleet.is_over("j", "n1"), 120.0)
    done = fleet.reports(RunProgressed)[-1].samples_done
    fleet.assign("j", [("n1", ranks)], training(ranks), generation=2, resume_samples=done)
    fleet.until(fleet.is_over("j", "n1", generation=2), 120.0)
    assert not fleet.reports(RunFailed)
    assert fleet.reports(RunStarted)[-1].samples_done == done
    (finished,) = fleet.reports(RunFinished)
    assert finished.samples_done == 60


def test_offloaded_experts_respect_device_budget(run: RunRanks) -> None:
    hidden, layers, experts, resident = 512, 3, 8, 2
    expert_bytes = 4 * (2 * hidden * 4 * hidden + 5 * hidden)
    # With gradients, moments and a copy in bfloat16; while a layer computes, a gradient more, in both types.
    of_each = int((layers * 4.5 + 1.5) * expert_bytes)
    budget_bytes = resident * of_each + 3 * expert_bytes
    # The dense part with all that trains it, activations, and the workspaces of the libraries.
    rest_bytes = 224 * 2**20
    setup = {
        "device": "cuda",
        "dtype": "float32",
        "hidden": hidden,
        "experts": experts,
        "hyperparameters": {"micro_op_mb": 30.0, "learning_rate": 1e-4},
    }
    (on_device,) = run(scenarios.train_on_device, 1, **setup)
    (off_loaded,) = run(scenarios.train_on_device, 1, memory_bytes=budget_bytes, **setup)
    assert (on_device["resident"], off_loaded["resident"]) == (experts, resident)
    # Sums in another order: what differs by a rounding at first grows from step to step.
    assert off_loaded["losses"][:4] == pytest.approx(on_device["losses"][:4], rel=2e-2)
    assert off_loaded["losses"] == pytest.approx(on_device["losses"], rel=0.1)
    assert off_loaded["peak_bytes"] <= budget_bytes + rest_bytes < on_device["peak_bytes"]
    saved_bytes = on_device["allocated_bytes"] - off_loaded["allocated_bytes"]
    assert saved_bytes >= 0.99 * (experts - resident) * layers * 4 * expert_bytes


def test_offloaded_experts_train_on_all_devices(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ranks = min(torch.cuda.device_count(), 4)
    # One of each layer, and one that comes: parameters, gradients, moments and copies in bfloat16.
    room_bytes = (LAYERS * 4.5 + 1.5 + 3) * fleet.expert_bytes
    fleet.add("n2", gpus=ranks, device="cuda", expert_memory_gib=(room_bytes + 1) / 2**30)
    for name, job_id, world in (("n1", "cpu", 1), ("n2", "gpu", ranks)):
        fleet.assign(job_id, [(name, world)], training(world, experts_per_device=EXPERTS))
        fleet.until(fleet.is_over(job_id, name), 120.0)
    assert not fleet.reports(RunFailed)
    losses = {report.job_id: report.loss for report in fleet.reports(RunFinished)}
    assert losses["gpu"] == pytest.approx(losses["cpu"], rel=5e-2)
    (started,) = (each.message for each in caplog.records if each.message.startswith("run started job=gpu"))
    assert f"experts_per_device={EXPERTS} resident_experts=1" in started
