"""A worker with a CUDA device."""

import pytest
import torch

from schemas.fleet import RunFailed, RunStarted
from tests.support.elastic_nodes import Fleet, workload
from tests.support.trained import Trained

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture
def fleet(fleet: Fleet) -> Fleet:
    """As many nodes as there are devices, two at most."""
    fleet.nodes.clear()
    for number in range(min(torch.cuda.device_count(), 2)):
        fleet.add(f"n{number + 1}", gpus=1, device="cuda", checkpoint_s=0.05)
    return fleet


def test_cuda_loss_is_nearly_that_of_cpu(fleet: Fleet, alone: Trained) -> None:
    fleet.assign("j", 1, [(name, 1) for name in fleet.nodes], workload(keeps=False))
    fleet.until(fleet.is_over("j", *fleet.nodes))
    assert not fleet.reports(RunFailed)
    losses = fleet.losses("j")
    assert losses[604] == pytest.approx(alone.losses[604], rel=0.05)


def test_an_adapter_goes_on_from_its_checkpoint(fleet: Fleet) -> None:
    endless = workload(10**6, adapter={"rank": 4, "target_modules": ("q_proj", "down_proj")})
    fleet.assign("j", 1, [("n1", 1)], endless)
    fleet.until(fleet.has_trained("j"))
    fleet.release("j", 1, ["n1"], "preempted")
    fleet.until(fleet.is_over("j", "n1"))
    done = fleet.progress("j")
    fleet.assign("j", 2, [("n1", 1)], endless, resumes=True, resume_samples=done)
    fleet.until(lambda: fleet.progress("j") > done)
    assert [report.samples_done for report in fleet.reports(RunStarted)] == [0, done]
    assert not fleet.reports(RunFailed)
