"""Pipelines on CUDA devices, one for each rank, as many as there are."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from executors.lora.lora_task import LoraTask
from tests.support import pipeline_scenarios as scenarios
from tests.support.pipeline_ranks import run_ranks

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_overlap_changes_no_bit_on_cuda(
    deep_directory: Path, dataset_root: Path, make_task: Callable[..., LoraTask], tmp_path: Path
) -> None:
    jobs = [
        {"task": make_task("a").model_dump_json(), "micro_batches": 2},
        {"task": make_task("b", seed=1).model_dump_json(), "micro_batches": 2, "direction": "reverse"},
    ]
    contents = []
    for overlap in (False, True):
        name = f"overlap-{overlap}"
        run_ranks(
            scenarios.train_and_switch,
            min(torch.cuda.device_count(), 4),
            deep_directory,
            dataset_root,
            tmp_path,
            jobs=jobs,
            steps=3,
            overlap=overlap,
            name=name,
            options={"device": "cuda"},
        )
        contents.append(
            {
                f"{job_id}/{path.name}": path.read_bytes()
                for job_id in ("a", "b")
                for path in (tmp_path / f"{name}-{job_id}").iterdir()
            }
        )
    assert contents[0] == contents[1]
