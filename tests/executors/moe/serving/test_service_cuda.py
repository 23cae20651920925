"""A service whose rank has a CUDA device: experts are swapped in on a stream of their own."""

from pathlib import Path

import pytest
import torch

from bench.network import loopback, run_ranks
from schemas.experts.commands import LayerPlacement
from schemas.experts.reports import ExpertsProfiled, ExpertsRouted
from schemas.fleet import RunFailed
from solvers.experts.schemes import SCHEMES
from tests.support import served_ranks
from tests.support.moe_nodes import EXPERTS, Fleet, service

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("scheme", ["one_per_device", "balanced"])
def test_cuda_answers_match_one_cpu_process(tmp_path: Path, scheme: str) -> None:
    assert scheme in SCHEMES
    ranks = min(torch.cuda.device_count(), 4)
    (result, *_) = run_ranks(
        served_ranks.serve,
        loopback(ranks),
        tmp_path,
        timeout_s=120.0,
        scheme=scheme,
        layers=3,
        experts=4,
        most=4,
        sizes=[6, 9, 1, 12, 7],
        device="cuda",
    )
    assert result["largest"] > 0.1
    assert result["difference"] < 1e-9


def test_a_service_reports_and_takes_a_placement(fleet: Fleet) -> None:
    fleet.nodes.clear()
    fleet.add("n1", gpus=1, device="cuda")
    fleet.assign("j", [("n1", 1)], service(ranks=1, requests={"most": 10**6}))
    fleet.until(lambda: fleet.reports(ExpertsProfiled))
    fleet.place("j", 1, [LayerPlacement(layer=1, devices=(tuple(reversed(range(EXPERTS))),))])
    fleet.until(lambda: any(report.revision == 1 for report in fleet.reports(ExpertsRouted)))
    fleet.release("j")
    fleet.until(fleet.is_over("j", "n1"))
    assert not fleet.reports(RunFailed)
    assert fleet.short_reports()[-1].endswith("complete")
